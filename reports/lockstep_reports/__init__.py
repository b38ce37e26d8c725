"""Reads the results file of a run and writes one self-contained HTML page.

    reading    lines of results.jsonl -> model, tolerant of a file that was cut
    model      the run, its cases and their evidence as plain values, and what is added up from them
    documents  numbers and names of the tests that scenarios mirror
    plots      matplotlib figures as inline SVG that follows the page's colours
    page       model -> index.html (templates/)

Nothing is shown that the results file does not hold.
"""
