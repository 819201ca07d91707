"""Papers done again: each module rebuilds one paper's experiments from the code that this project runs on.

A lab writes a folder: ``results.jsonl`` (one line per run), ``summary.json`` (the paper's numbers beside ours, with the
reason where they differ), figures, and ``index.html``, which shows all of it.
"""
