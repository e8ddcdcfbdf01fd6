"""What browsers are given: the files of the page and of reports, and foreign text made readable."""
