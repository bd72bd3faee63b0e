"""Generated from `protos/peer.proto` by `make proto`; never edited by hand."""
