//! Identities: what each may do, seen from outside.

mod identities;
mod matrix;
mod quotas;
mod rules;
