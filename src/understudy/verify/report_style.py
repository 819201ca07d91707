"""The looks of the report: its colours, its style sheet, and the frame that makes a whole page of its sections."""

from __future__ import annotations

from html import escape

# One colour, one meaning, in every plot, bar and badge: name, light, dark. Light values must differ from each
# other, since that is how they are found in the SVG.
_PALETTE = {
    "ink": ("#1c2330", "#e8ebf1"),
    "muted": ("#667085", "#98a2b3"),
    "rule": ("#dfe3ea", "#343b49"),
    "line": ("#2f5fd0", "#7ea6ff"),
    "kill": ("#d02f4b", "#ff7d8f"),
    "detection": ("#e08a00", "#f5b041"),
    "redeployment": ("#8250df", "#b794ff"),
    "reprocessing": ("#0f9488", "#3fd0c0"),
}
LIGHT = {name: light for name, (light, _) in _PALETTE.items()}


def page(title: str, body: str) -> str:
    return _PAGE.format(title=escape(title), style=_style(), body=body)


def _style() -> str:
    light = "".join(f"--{name}:{value};" for name, (value, _) in _PALETTE.items())
    dark = "".join(f"--{name}:{value};" for name, (_, value) in _PALETTE.items())
    return (
        ":root{color-scheme:light dark;--page:#f5f6f9;--card:#fff;"
        f"--good:#16803c;--warn:#b45309;--bad:#c62a41;{light}}}"
        "@media (prefers-color-scheme:dark){:root{--page:#12151b;--card:#1b2029;"
        f"--good:#4ade80;--warn:#fbbf24;--bad:#ff7d8f;{dark}}}}}{_CSS}"
    )


_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:72rem;margin:0 auto;padding:2rem 1.25rem 3rem;
 display:grid;grid-template-columns:minmax(0,1fr);gap:1.25rem}
main>*,.columns>*{min-width:0}
h1{margin:0;font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}
h2{margin:0 0 .9rem;font-size:1rem}
.about{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;margin:.5rem 0 0}
.about div{display:flex;gap:.4rem;min-width:0}
.about dt,.note,figcaption,.tile span,small{color:var(--muted)}
.about dd{margin:0;font-weight:600;overflow-wrap:anywhere}
section,.verdict,.tile{background:var(--card);border:1px solid var(--rule);border-radius:.75rem}
section{padding:1.1rem 1.25rem}
.verdict{padding:1.4rem 1.5rem;border-left:.6rem solid var(--tone);--tone:var(--muted)}
.verdict strong{display:block;font-size:3rem;line-height:1;letter-spacing:-.03em;
 text-transform:uppercase;color:var(--tone);overflow-wrap:anywhere}
@media (min-width:40rem){.verdict strong{font-size:5rem}}
.verdict p{margin:.6rem 0 0;font-size:1.1rem}
.precise{--tone:var(--good)}.rollback{--tone:var(--warn)}.gap{--tone:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem}
.tile{padding:.85rem 1rem}
.tile b{display:block;font-size:1.6rem;line-height:1.2;font-variant-numeric:tabular-nums}
.tile span{font-size:.85rem}
.tile.warn b{color:var(--warn)}
.tile.bad b{color:var(--bad)}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));
 gap:1.25rem;align-items:start}
.plot{margin:0;overflow-x:auto}
.plot svg{display:block;width:100%;min-width:26rem;height:auto}
.plot svg *{stroke-linejoin:round;stroke-linecap:butt}
.plot text{font-family:inherit!important}
figcaption{font-size:.85rem;text-align:center}
.bar{display:flex;gap:2px;height:2.5rem;border-radius:.4rem;overflow:hidden}
.bar i{flex:0 1 0;min-width:3px}
.detection{background:var(--detection)}
.redeployment{background:var(--redeployment)}
.reprocessing{background:var(--reprocessing)}
.rest{background:var(--muted)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.4rem 1.75rem;margin:.9rem 0 0;padding:0}
.legend li{display:flex;align-items:center;gap:.5rem}
.legend b,.legend small{white-space:nowrap}
.legend i{flex:none;width:.8rem;height:.8rem;border-radius:.2rem}
.note{margin:.75rem 0 0}
.note b{color:var(--ink)}
h2+.note{margin-top:0}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .5rem;text-align:left;border-bottom:1px solid var(--rule)}
tbody th{font-weight:400;overflow-wrap:anywhere}
thead th{color:var(--muted);font-weight:400;font-size:.85rem}
th:last-child,td:last-child{text-align:right;white-space:nowrap}
tfoot th,tfoot td{border-bottom:0;font-weight:700}
.meter{width:40%}
.meter i{display:block;height:.6rem;min-width:1px;border-radius:.3rem;background:var(--line)}
.own th,.own td{color:var(--muted)}
.own .meter i{background:var(--muted);opacity:.5}
.timeline{list-style:none;margin:0;padding:0;max-height:30rem;overflow:auto}
.timeline li{display:grid;grid-template-columns:4rem 7.5rem 1fr;gap:.75rem;align-items:baseline;
 padding:.35rem 0;border-bottom:1px solid var(--rule)}
.timeline li:last-child{border-bottom:0}
.timeline span{min-width:0;overflow-wrap:anywhere}
time{text-align:right;color:var(--muted);font-variant-numeric:tabular-nums}
.kind{font-weight:600;background:none;border-left:.3rem solid var(--muted);padding-left:.5rem}
.kind.kill{border-color:var(--kill)}
.kind.detection{border-color:var(--detection)}
.kind.redeployment{border-color:var(--redeployment)}
.kind.reprocessing{border-color:var(--reprocessing)}
@media print{body{background:none}section,.verdict,.tile{break-inside:avoid}.timeline{max-height:none}}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
