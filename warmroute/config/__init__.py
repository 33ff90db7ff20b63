"""The configuration model, one file a section; `warmroute.config.model` has the rules that all of them share."""
