"""What a user would run instead. Modules load when they are needed: ``tacitly.FedRep`` and the others name theirs."""
