"""A run on paper: figures for print, a report as one HTML file and as PDF, made from a bundle.

    bundle -> figures (chart specification + data) -> PNG, SVG, PDF, CSV, Parquet
           -> sections (paragraphs, tables, figures) -> report.html, report.pdf

`python -m core.report BUNDLE`
"""
