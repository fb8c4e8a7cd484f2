//! Process groups: store, rendezvous, transports, collectives, and the cause of every failure.
