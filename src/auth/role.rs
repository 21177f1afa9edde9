//! Roles of identities.

use std::fmt;

/// Role: a set of RPCs. [`rule`](super::rule) has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Enqueues jobs, and reads, moves and deletes them by id.
    Producer,
    /// Takes jobs and settles them.
    Worker,
    /// Does what people and tools do to keep a queue in order.
    Operator,
    /// Reads what operators read, and changes nothing.
    Viewer,
}

// === impl Role ===

impl Role {
    /// Every role, in the order of the documentation.
    pub const ALL: [Role; 4] = [Role::Producer, Role::Worker, Role::Operator, Role::Viewer];

    /// Returns the name in files and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Producer => "producer",
            Role::Worker => "worker",
            Role::Operator => "operator",
            Role::Viewer => "viewer",
        }
    }

    /// Returns the place of the role in [`Role::ALL`].
    pub(super) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
