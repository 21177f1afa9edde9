//! Identities: what each may do, seen from outside.

mod audit;
mod identities;
mod matrix;
mod rules;
mod secrets;
