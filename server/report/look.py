"""How the page looks: light and dark by the reader's system, from a phone's width on, and on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #22262e; --faint: #5c6673; --line: #dfe3e8; --ground: #fff; --tint: #f4f6f8;
  --band: #eef1f5; --focus: #0b62c4; --lift: 0%; --bad: #a8201a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --faint: #a3acb8; --line: #343b45; --ground: #15181d; --tint: #1d2127; --band: #20252c;
    --focus: #7ab8ff; --lift: 35%; --bad: #ff9b90; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1120px; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; padding-top: 1.25rem; border-top: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h3 small { font-weight: 400; font-size: .8rem; color: var(--faint); margin-left: .4rem; }
p { color: var(--faint); margin: 0 0 .8rem; max-width: 75ch; }
strong, b { font-weight: 600; color: var(--ink); }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; border-radius: 3px; }
.live { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem 1rem; margin: .5rem 0 .75rem; }
.live p { margin: 0; } .live p::before { content: ""; display: inline-block; width: .6em; height: .6em;
  border-radius: 50%; margin-right: .5em; background: var(--faint); }
[data-state=live] .live p::before { background: #18a058; } [data-state=lost] .live p::before { background: var(--bad); }
button { font: inherit; color: var(--ink); background: var(--tint); border: 1px solid var(--faint); border-radius: 6px;
  padding: .3rem .9rem; min-height: 2.2rem; cursor: pointer; } button:hover { border-color: var(--ink); }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 500; vertical-align: bottom; }
thead th { white-space: normal; }
tbody th { color: var(--ink); font-weight: 600; }
th:first-child, td:first-child, table.words th, table.words td { text-align: left; padding-left: .25rem; }
table.words tbody th, table.words td { vertical-align: top; }
table.words td { white-space: normal; overflow-wrap: anywhere; padding-right: 1.5rem; }
tbody tr:hover { background: var(--tint); }
.key { display: inline-block; width: 1.3em; height: 4px; border-radius: 2px; margin-right: .5em; vertical-align: .22em;
  background: color-mix(in srgb, var(--c), white var(--lift)); flex: none; }
.key.dashed { mask: repeating-linear-gradient(90deg, #000 0 .4em, transparent .4em .6em); }
.bar { display: inline-block; width: 6rem; height: .6rem; margin-right: .5rem; background: var(--band);
  border-radius: 3px; overflow: hidden; } .bar i { display: block; height: 100%;
  background: color-mix(in srgb, #d55e00, white var(--lift)); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(260px, 100%), 1fr)); gap: 0 2rem; margin: 0;
  font-size: .9rem; }
dl div { display: flex; justify-content: space-between; gap: 1rem; padding: .25rem;
  border-bottom: 1px solid var(--line); }
dt { color: var(--faint); }
dd { margin: 0; text-align: right; overflow-wrap: anywhere; min-width: 0; font-variant-numeric: tabular-nums; }
.now { display: flex; flex-wrap: wrap; gap: 1.25rem; align-items: stretch; }
.cards { flex: 1 1 320px; display: grid; grid-template-columns: repeat(auto-fit, minmax(min(260px, 100%), 1fr));
  gap: 1.25rem; }
.card, .dial { background: var(--tint); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem; }
.card:first-child { grid-row: span 2; } .card dl { display: block; } .card dl div:last-child { border: 0; }
.of { font-weight: 600; color: var(--ink); }
figure { margin: 1.25rem 0 1.75rem; break-inside: avoid; }
.dial { margin: 0; flex: 0 1 260px; text-align: center; } .dial svg { width: min(210px, 100%); height: auto; }
.dial text { font-size: 13px; fill: var(--faint); text-anchor: middle; dominant-baseline: central; }
.arc { fill: none; stroke: color-mix(in srgb, var(--c), white var(--lift)); stroke-width: 12; opacity: .45; }
.arc.current { stroke-width: 20; opacity: 1; }
.hand { stroke: var(--ink); stroke-width: 3; stroke-linecap: round; } .hub { fill: var(--ink); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .5rem 0 .4rem; padding: 0;
  font-size: .85rem; color: var(--faint); } .legend li { display: flex; align-items: center; min-width: 0;
  overflow-wrap: anywhere; } .legend b { margin-left: .4em; white-space: nowrap; font-variant-numeric: tabular-nums; }
.dial .legend { justify-content: center; } .legend .current { color: var(--ink); font-weight: 600; }
.plot { position: relative; height: 250px; margin: 2rem .4rem 2.9rem 3rem; font-size: .75rem; color: var(--faint); }
.plot.small { height: 130px; margin: 1.5rem .4rem 2.4rem 2.4rem; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot span { position: absolute; line-height: 1; white-space: nowrap; }
.plot .y { right: 100%; margin-right: .5rem; transform: translateY(-50%); }
.plot .x { top: 100%; margin-top: .45rem; transform: translateX(-50%); }
.plot .across { top: 100%; right: 0; margin-top: 1.45rem; }
.plot .band { bottom: 100%; margin-bottom: .25rem; }
.grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; } .tint { fill: var(--band); }
.line, .dots { fill: none; stroke: color-mix(in srgb, var(--c), white var(--lift)); stroke-width: 2;
  stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.dots { stroke-width: 5.5; stroke-linecap: round; } .strip, .bar i { print-color-adjust: exact; }
.strip { fill: color-mix(in srgb, var(--c), white var(--lift)); }
[style*="--c:ink"] { --c: var(--ink) !important; --lift: 0%; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(240px, 100%), 1fr)); gap: 0 1.5rem; }
.panels figure { margin: .5rem 0; min-width: 0; } .panels h3 { font-size: .85rem; }
details { font-size: .85rem; } summary { cursor: pointer; color: var(--faint); padding: .3rem 0; width: fit-content; }
details .scroll { max-height: 22rem; overflow: auto; margin-top: .3rem; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (max-width: 560px) { body { padding: 1.25rem .9rem 3rem; } .dial { flex: 1 1 100%; } .plot { height: 200px; }
  .plot .wide { display: none; } }
@media print { body { max-width: none; padding: 0; } .live { display: none; } }
"""
