"""Studies: a question of the literature, measured on the device at hand, drawn and answered in words.

A study is a module of this package, named in NAMES, with

    TITLE                               what it asks
    COLUMNS                             {name: (unit, meaning)} of what a row holds
    points(options) -> [point]          what is measured: named parameters each
    measure(point, bench) -> [row]      {column: value}; `time_us` may be a list of samples
    figures(table) -> [Figure]          drawn with minicnn.study.page
    words(table) -> [sentence]          what was found

minicnn.study.run measures the points one after the other and writes what came of them.
"""

NAMES = ("breakdown", "li2016", "convnet", "deepbench", "energy", "memory", "whatif", "chooser")
EFFORTS = ("quick", "default", "full")
