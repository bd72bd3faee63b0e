"""`mend plan`: what a run on a link would be like, before it is started. All modules here but
`command` are pure: numbers in, numbers and text out."""
