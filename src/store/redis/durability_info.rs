//! Facts that a Redis reports about itself, and the durability of a write that follows from them:
//!
//! - `appendfsync always` syncs before it answers: FSYNCED, and no confirmation is needed.
//! - `everysec` answers first. WAITAOF (since Redis 7.2) waits for the sync; but Redis before 7.4.3, and Valkey 9.1
//!   still, which reports Redis 7.2.4 as its version, confirm writes that are not synced yet.
//! - A replica confirms received writes to WAIT, which all versions have.

use crate::domain::Durability;
use crate::store::WriteDurability;

use super::check::{field, version};

/// First version whose WAITAOF confirms only synced writes.
const WAITAOF_SINCE: [u32; 3] = [7, 4, 3];
/// First version that has WAITAOF.
const WAITAOF_EXISTS_SINCE: [u32; 3] = [7, 2, 0];
/// Maximum lag of a replica that counts, in seconds.
const LAG_MAX: u64 = 10;

/// Sync policy of the append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppendFsync {
    Always,
    /// Every second; also if the policy is not known.
    EverySecond,
    Never,
}

/// Facts about one Redis process from which the durability of its writes follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedisDurabilityInfo {
    /// Identity of the process.
    pub(super) process: String,
    /// An append-only file is configured.
    pub(super) aof_configured: bool,
    /// The append-only file exists, and can be written.
    pub(super) aof_writable: bool,
    /// The append-only file is being rewritten, or that has failed: before its first rewrite ends the file is not
    /// complete.
    pub(super) aof_rewriting: bool,
    policy: AppendFsync,
    version: [u32; 3],
    /// A replica is connected and up to date.
    replicated: bool,
}

// === impl RedisDurabilityInfo ===

impl RedisDurabilityInfo {
    /// Reads INFO and the settings, as far as they are available.
    pub(super) fn read(info: &str, settings: &[(String, String)]) -> RedisDurabilityInfo {
        let is = |name: &str, value: &str| field(info, name) == Some(value);
        let setting =
            |name: &str| settings.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let policy = match (setting("appendfsync"), setting("no-appendfsync-on-rewrite")) {
            (Some("always"), Some("no")) => AppendFsync::Always,
            (Some("no"), _) => AppendFsync::Never,
            _ => AppendFsync::EverySecond,
        };
        RedisDurabilityInfo {
            process: field(info, "run_id").unwrap_or_default().to_owned(),
            aof_configured: is("aof_enabled", "1"),
            aof_writable: is("aof_enabled", "1")
                && is("aof_last_write_status", "ok")
                && is("loading", "0"),
            aof_rewriting: !is("aof_rewrite_in_progress", "0")
                || !is("aof_rewrite_scheduled", "0")
                || !is("aof_last_bgrewrite_status", "ok"),
            policy,
            version: version(info),
            replicated: (0..).map_while(|n| field(info, &format!("slave{n}"))).any(is_up_to_date),
        }
    }

    /// Returns whether WAITAOF confirms writes that are not synced yet, and a sync would need a wait.
    pub(super) fn confirms_too_early(&self) -> bool {
        let is_early = (WAITAOF_EXISTS_SINCE..WAITAOF_SINCE).contains(&self.version);
        self.aof_writable && self.policy == AppendFsync::EverySecond && is_early
    }

    /// Returns the durability of a write, given whether the file is `complete`.
    pub(super) fn write_durability(&self, complete: bool) -> WriteDurability {
        let always = complete && self.policy == AppendFsync::Always;
        let confirmed =
            complete && self.policy == AppendFsync::EverySecond && self.version >= WAITAOF_SINCE;
        let plain = if always { Durability::Fsynced } else { Durability::Memory };
        let most = match always || confirmed {
            true if self.replicated => Durability::Replicated,
            true => Durability::Fsynced,
            false => Durability::Memory,
        };
        WriteDurability { by_default: plain, max: most }
    }
}

/// Returns whether a replica is up to date: `ip=…,port=…,state=online,offset=…,lag=…`.
fn is_up_to_date(replica: &str) -> bool {
    let part =
        |name: &str| replica.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let lag = part("lag").and_then(|lag| lag.parse::<u64>().ok());
    part("state") == Some("online") && lag.is_some_and(|lag| lag <= LAG_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "redis_version:7.4.3\r\nrun_id:a\r\nloading:0\r\naof_enabled:1\r\n\
        aof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\naof_last_bgrewrite_status:ok\r\n\
        aof_last_write_status:ok\r\n\
        slave0:ip=127.0.0.1,port=1,state=online,offset=14,lag=0\r\n";

    /// Durability of a write: `plain` and `most`, by their first letters.
    fn reach(info: &str, settings: &[(&str, &str)]) -> String {
        let facts = RedisDurabilityInfo::read(info, &owned(settings));
        let WriteDurability { by_default: plain, max: most } =
            facts.write_durability(facts.aof_writable && !facts.aof_rewriting);
        format!("{:.1}{:.1}", format!("{plain:?}"), format!("{most:?}"))
    }

    fn synced<'a>(policy: &'a str, on_rewrite: &'a str) -> [(&'a str, &'a str); 2] {
        [("appendfsync", policy), ("no-appendfsync-on-rewrite", on_rewrite)]
    }

    #[test]
    fn default_and_max_durability_by_settings() {
        assert_eq!(reach(INFO, &synced("always", "no")), "FR");
        assert_eq!(reach(INFO, &synced("everysec", "no")), "MR");
        assert_eq!(reach(INFO, &synced("always", "yes")), "MR", "not while it is rewritten");
        assert_eq!(reach(INFO, &synced("no", "no")), "MM", "no sync is configured");
        assert_eq!(reach(INFO, &[]), "MR", "an unknown setting requires confirmation");
        let old = INFO.replace("7.4.3", "7.0.15");
        assert_eq!(reach(&old, &synced("always", "no")), "FR");
        assert_eq!(reach(&old, &synced("everysec", "no")), "MM");
        assert_eq!(reach(&old, &[]), "MM");
    }

    #[test]
    fn incomplete_or_unwritten_aof_does_not_count() {
        for (good, bad) in [
            ("aof_enabled:1", "aof_enabled:0"),
            ("loading:0", "loading:1"),
            ("aof_rewrite_in_progress:0", "aof_rewrite_in_progress:1"),
            ("aof_rewrite_scheduled:0", "aof_rewrite_scheduled:1"),
            ("aof_last_bgrewrite_status:ok", "aof_last_bgrewrite_status:err"),
            ("aof_last_write_status:ok", "aof_last_write_status:err"),
            ("aof_enabled:1\r\n", ""),
        ] {
            let info = INFO.replace(good, bad);
            assert_eq!(reach(&info, &synced("always", "no")), "MM", "{bad}");
        }
    }

    #[test]
    fn only_replicas_that_follow_count() {
        for gone in ["state=wait_bgsave", "state=online,offset=14,lag=11", "state=online"] {
            let info = INFO.replace("state=online,offset=14,lag=0", gone);
            assert_eq!(reach(&info, &synced("always", "no")), "FF", "{gone}");
        }
        let two = INFO.replace("slave0:", "slave0:ip=127.0.0.1,port=2,state=send_bulk\r\nslave1:");
        assert_eq!(reach(&two, &synced("always", "no")), "FR");
    }

    #[test]
    fn early_confirming_version_reaches_memory() {
        for (version, reached, is_early) in [
            ("7.0.15", "MM", false),
            ("7.2.4", "MM", true),
            ("7.4.2", "MM", true),
            ("7.4.3", "MR", false),
            ("8.0.0", "MR", false),
        ] {
            let info = INFO.replace("7.4.3", version);
            assert_eq!(reach(&info, &synced("everysec", "no")), reached, "{version}");
            let facts = |policy| RedisDurabilityInfo::read(&info, &owned(&synced(policy, "no")));
            assert_eq!(facts("everysec").confirms_too_early(), is_early, "{version}");
            assert!(!facts("always").confirms_too_early(), "{version}");
        }
    }

    fn owned(settings: &[(&str, &str)]) -> Vec<(String, String)> {
        settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    impl RedisDurabilityInfo {
        /// Returns the facts of a Redis with this sync policy, with a replica or without.
        pub(in crate::store::redis) fn example(
            policy: &str,
            is_replicated: bool,
        ) -> RedisDurabilityInfo {
            let info = if is_replicated { INFO } else { INFO.split("slave0").next().unwrap() };
            RedisDurabilityInfo::read(info, &owned(&synced(policy, "no")))
        }
    }
}
