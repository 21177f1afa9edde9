//! Setting of one group.

use rusqlite::Row;

use super::statement::statement;

pub(super) const FIND: &str = statement(include_str!("group_settings.sql"), "find");

/// Setting of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneSetting {
    pub(super) weight: u8,
    pub(super) paused: bool,
}

// === impl LaneSetting ===

impl LaneSetting {
    /// Reads the setting of a row.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<LaneSetting> {
        Ok(LaneSetting { weight: row.get(0)?, paused: row.get(1)? })
    }
}

impl Default for LaneSetting {
    /// Returns the setting of a group that has none.
    fn default() -> LaneSetting {
        LaneSetting { weight: 1, paused: false }
    }
}
