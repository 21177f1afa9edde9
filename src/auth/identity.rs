//! One identity, and what it may do.

use std::fmt;

use crate::domain::{TopicName, TopicPattern};
use crate::rpc::Rpc;

use super::role::Role;
use super::rpc_rule::{RpcScope, rule};
use super::token::TokenHash;

/// Identity: a producer, a team, a person or a tool that calls this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name in files, logs and metrics.
    pub name: String,
    /// Hashes of its tokens; two, so that a token can be replaced without a gap.
    pub tokens: Vec<TokenHash>,
    /// Subjects of JSON Web Tokens.
    pub jwt: Vec<JwtSubject>,
    /// Names in client certificates, each a URI or a DNS name of the subject's alternative names.
    pub certificates: Vec<String>,
    /// Prefixes of the topics that exist for it, each ending in a separator. Empty: all topics.
    pub namespaces: Vec<String>,
    /// Patterns of topics by role, as they are written.
    pub grants: [Vec<TopicPattern>; 4],
    /// Patterns of topics whose payloads and results it may read in jobs. A worker gets those of its deliveries anyway.
    pub payloads: Vec<TopicPattern>,
}

/// Subject of JSON Web Tokens of one issuer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JwtSubject {
    /// Name of the issuer among those that are configured.
    pub issuer: String,
    /// Claim `sub`.
    pub subject: String,
}

/// Rule that allows an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission<'a> {
    /// This pattern of this role.
    Pattern(Role, &'a TopicPattern),
    /// The call needs no role.
    NoRoleNeeded,
}

/// Reason why an access is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The identity has none of the roles that the RPC needs.
    NoRole(Rpc),
    /// The topic is outside of the namespaces of the identity: for it, it does not exist.
    OutsideNamespaces,
    /// No pattern of the roles that the RPC needs matches the topic.
    NoPattern(Rpc),
    /// The RPC concerns all topics, and the identity has no pattern `*`, or has namespaces.
    NotWholeServer(Rpc),
}

// === impl Identity ===

impl Identity {
    /// Returns an identity that may do nothing.
    #[must_use]
    pub fn new(name: &str) -> Identity {
        Identity {
            name: name.to_owned(),
            tokens: Vec::new(),
            jwt: Vec::new(),
            certificates: Vec::new(),
            namespaces: Vec::new(),
            grants: [const { Vec::new() }; 4],
            payloads: Vec::new(),
        }
    }

    /// Decides about a call before its message is read.
    ///
    /// # Errors
    /// [`Denial`], if it cannot be allowed whatever it touches.
    pub fn may_call(&self, rpc: Rpc) -> Result<Permission<'_>, Denial> {
        let rule = rule(rpc);
        if rule.roles.is_empty() {
            return Ok(Permission::NoRoleNeeded);
        }
        let Some((role, first)) = self.find(rpc, |_| true) else {
            return Err(Denial::NoRole(rpc));
        };
        if rule.scope != RpcScope::Server {
            return Ok(Permission::Pattern(role, first));
        }
        let is_all = |pattern: &TopicPattern| matches!(pattern, TopicPattern::Prefix(prefix) if prefix.is_empty());
        match self.find(rpc, is_all) {
            Some((role, pattern)) if self.namespaces.is_empty() => {
                Ok(Permission::Pattern(role, pattern))
            }
            _ => Err(Denial::NotWholeServer(rpc)),
        }
    }

    /// Returns whether it may settle jobs of a topic.
    #[must_use]
    pub fn may_settle(&self, topic: &TopicName) -> bool {
        self.may_touch(Rpc::Ack, topic).is_ok()
    }

    /// Decides whether a call may touch a topic.
    ///
    /// # Errors
    /// [`Denial`], with the reason.
    pub fn may_touch(&self, rpc: Rpc, topic: &TopicName) -> Result<Permission<'_>, Denial> {
        if !self.sees(topic) {
            return Err(Denial::OutsideNamespaces);
        }
        match self.find(rpc, |pattern| pattern.matches(topic)) {
            Some((role, pattern)) => Ok(Permission::Pattern(role, pattern)),
            None if rule(rpc).roles.is_empty() => Ok(Permission::NoRoleNeeded),
            None => Err(Denial::NoPattern(rpc)),
        }
    }

    /// Returns the part of a pattern that a call may touch: patterns of which none includes another. Empty: no topic.
    #[must_use]
    pub fn allowed_part(&self, rpc: Rpc, asked: &TopicPattern) -> Vec<TopicPattern> {
        let granted = self.granted(rpc).filter_map(|(_, pattern)| pattern.intersection(asked));
        let within = granted.flat_map(|pattern| self.within_namespaces(&pattern));
        let mut parts: Vec<TopicPattern> = Vec::new();
        for part in within {
            if !parts.iter().any(|other| other.includes(&part)) {
                parts.retain(|other| !part.includes(other));
                parts.push(part);
            }
        }
        parts
    }

    /// Returns whether the identity may read the payloads and results of the jobs of a topic.
    #[must_use]
    pub fn may_read_payloads(&self, topic: &TopicName) -> bool {
        self.sees(topic) && self.payloads.iter().any(|pattern| pattern.matches(topic))
    }

    /// Returns the patterns of the roles that the RPC needs.
    fn granted(&self, rpc: Rpc) -> impl Iterator<Item = (Role, &TopicPattern)> {
        let roles = rule(rpc).roles.iter();
        roles.flat_map(|role| self.grants[role.index()].iter().map(|pattern| (*role, pattern)))
    }

    /// Returns the first such pattern of the roles that the RPC needs.
    fn find(
        &self,
        rpc: Rpc,
        is_wanted: impl Fn(&TopicPattern) -> bool,
    ) -> Option<(Role, &TopicPattern)> {
        for role in rule(rpc).roles {
            for pattern in &self.grants[role.index()] {
                if is_wanted(pattern) {
                    return Some((*role, pattern));
                }
            }
        }
        None
    }

    /// Returns whether the topic is in one of the namespaces.
    fn sees(&self, topic: &TopicName) -> bool {
        let mut namespaces = self.namespaces.iter();
        self.namespaces.is_empty() || namespaces.any(|prefix| topic.as_str().starts_with(prefix))
    }

    fn within_namespaces(&self, pattern: &TopicPattern) -> Vec<TopicPattern> {
        if self.namespaces.is_empty() {
            return vec![pattern.clone()];
        }
        let namespaces = self.namespaces.iter().cloned().map(TopicPattern::Prefix);
        namespaces.filter_map(|namespace| namespace.intersection(pattern)).collect()
    }
}

// === Display ===

impl fmt::Display for Permission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Permission::Pattern(role, pattern) => {
                write!(f, "role {role} with the pattern {pattern}")
            }
            Permission::NoRoleNeeded => f.write_str("every identity may do this"),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = |rpc: &Rpc| {
            let names: Vec<_> = rule(*rpc).roles.iter().map(|role| role.name()).collect();
            names.join(" or ")
        };
        match self {
            Denial::NoRole(rpc) => {
                write!(f, "{} needs the role {}", rpc.name(), needed(rpc))
            }
            Denial::OutsideNamespaces => f.write_str("the topic is outside of its namespaces"),
            Denial::NoPattern(rpc) => {
                write!(f, "no pattern of its role {} matches the topic", needed(rpc))
            }
            Denial::NotWholeServer(rpc) => write!(
                f,
                "{} concerns all topics: it needs the role {} with the pattern *, and no namespaces",
                rpc.name(),
                needed(rpc)
            ),
        }
    }
}
