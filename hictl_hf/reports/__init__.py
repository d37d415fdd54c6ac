"""Results, tables, the style of plots and the HTML page; no task is known here."""
