//! The integration tests: one binary, one link. Only a list of modules; what belongs where:

/// What every store must do, one file per verb; each case runs against every store.
mod conformance;
/// Seeded random sequences of every verb: a store against a reference model.
mod model;
