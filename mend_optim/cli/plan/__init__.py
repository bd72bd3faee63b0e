"""`mend plan`: a forecast of a run on a link, before it is started. All modules here but
`command` are pure: numbers in, numbers and text out."""
