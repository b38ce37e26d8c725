"""Reads the results file of a run and writes one self-contained HTML page.

    reading    lines of results.jsonl -> model; accepts a truncated file
    model      the run, its cases and their evidence as plain values, and totals over them
    documents  numbers and names of the tests that scenarios mirror
    plots      matplotlib figures as inline SVG that follows the page's colours
    page       model -> index.html (templates/)

All content of the page comes from the results file.
"""
