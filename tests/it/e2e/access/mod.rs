//! Identities: what each may do, seen from outside.

mod audit;
mod byte_quotas;
mod identities;
mod matrix;
mod quotas;
mod receipts;
mod rules;
mod secrets;
mod strangers;
