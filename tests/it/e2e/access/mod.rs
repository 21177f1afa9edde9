//! Identities: what each may do, seen from outside.

mod audit;
mod identities;
mod matrix;
mod quotas;
mod rules;
mod secrets;
