//! Identities of callers, how they are proved, and what each may do.
//!
//! - [`role`]: the roles; [`rpc_rule`]: which of them each RPC needs, and what it touches
//! - [`identity`]: an identity and its decisions
//! - [`token`]: bearer tokens and their hashes; [`secret`]: where a file of identities refers to one
//! - [`identity_file`]: identities as text, in TOML; `table_reader`: what its tables have in common with others
//! - [`identities`]: all that are known at one moment
//! - [`jwt`]: JSON Web Tokens and their issuers
//! - [`identity_source`]: the files, read again when they change; `bounded_file`: how each is read
//! - `in_force`: identities in force, with the present keys of their issuers
//! - [`quota`]: what an identity may use in a second, and a namespace may keep waiting
//! - [`authenticator`]: from the credentials of a call to its [`Caller`]
//!
//! Nothing is allowed that no rule allows. Without any identity everything is: a server that others can reach refuses
//! to start then, unless it is set to be insecure.

pub mod authenticator;
pub mod identities;
pub mod identity;
pub mod identity_file;
pub mod identity_source;
mod in_force;
pub mod jwt;
pub mod quota;
pub mod role;
pub mod rpc_rule;
pub mod secret;
mod table_reader;
#[cfg(test)]
mod tests;
pub mod token;

pub use authenticator::{Authenticator, Caller, ConnectionCredentials, Unauthenticated};
pub use identities::Identities;
pub use identity::{Denial, Identity, Permission};
pub use identity_source::IdentitySource;
pub use jwt::JwtError;
pub use quota::{
    IdentityMeter, IdentityQuota, JobReservation, NamespaceFigure, NamespaceMeters, NamespaceTable,
    QuotaExceeded, QuotaKind, QuotaRetry, Quotas, StreamSlot,
};
pub use role::Role;
pub use rpc_rule::{RpcRule, RpcScope, rule};
