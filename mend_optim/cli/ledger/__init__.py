"""`mend ledger`: the ledgers of several learners as one story, with a verdict. All modules here but
`command` are pure: they take lines and return records, text or a page. They read no file."""
