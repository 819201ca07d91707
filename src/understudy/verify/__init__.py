"""Checkers that judge a run from what it left behind. They know no internals: only what sinks received, and when.

``checkers`` says what must hold of any run, simulated or real; ``compare`` says what kind of recovery a real run showed
(precise, rollback, gap), and ``silence`` how long its output was silent; ``report`` turns such a judgement into a page
for people. Below them: ``sink_folders`` reads what a sink holds, ``equal_rows`` says when rows are equal, and
``report_plots``, ``report_style`` and ``report_texts`` are the page's drawings, looks and numbers.
"""
