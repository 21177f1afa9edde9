//! What a Redis says of itself, and what a write reaches by that:
//!
//! - `appendfsync always` syncs before it answers: FSYNCED, and nothing has to be asked.
//! - `everysec` answers first. WAITAOF (since Redis 7.2) waits for the sync; but Redis before 7.4.3, and Valkey 9.1 still,
//!   which gives its version as Redis 7.2.4, confirm what is not synced yet.
//! - A replica confirms what it has received to WAIT, which all versions know.

use crate::domain::Durability;
use crate::store::Reach;

use super::check::{field, version};

/// The first version whose WAITAOF confirms only what is synced.
const WAITAOF_SINCE: [u32; 3] = [7, 4, 3];
/// The first version that has WAITAOF.
const WAITAOF_EXISTS_SINCE: [u32; 3] = [7, 2, 0];
/// A replica that was not heard of for longer does not count.
const LAG_MAX: u64 = 10;

/// How a Redis syncs its append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Always,
    /// Every second; or it is not known.
    Sometimes,
    Never,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Which process this is.
    pub(super) process: String,
    /// There is to be an append-only file.
    pub(super) keeps: bool,
    /// There is one, and it can be written.
    pub(super) aof: bool,
    /// It is being written anew, or that has failed: the first time it is not whole before.
    pub(super) rewriting: bool,
    policy: Policy,
    version: [u32; 3],
    /// A replica is connected and up to date.
    replicated: bool,
}

// === impl Facts ===

impl Facts {
    /// From INFO and the settings, as far as they can be read.
    pub(super) fn read(info: &str, settings: &[(String, String)]) -> Facts {
        let is = |name: &str, value: &str| field(info, name) == Some(value);
        let setting =
            |name: &str| settings.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let policy = match (setting("appendfsync"), setting("no-appendfsync-on-rewrite")) {
            (Some("always"), Some("no")) => Policy::Always,
            (Some("no"), _) => Policy::Never,
            _ => Policy::Sometimes,
        };
        Facts {
            process: field(info, "run_id").unwrap_or_default().to_owned(),
            keeps: is("aof_enabled", "1"),
            aof: is("aof_enabled", "1") && is("aof_last_write_status", "ok") && is("loading", "0"),
            rewriting: !is("aof_rewrite_in_progress", "0")
                || !is("aof_rewrite_scheduled", "0")
                || !is("aof_last_bgrewrite_status", "ok"),
            policy,
            version: version(info),
            replicated: (0..).map_while(|n| field(info, &format!("slave{n}"))).any(is_up_to_date),
        }
    }

    /// Whether it has a WAITAOF that confirms what is not synced yet, and a sync would have to be waited for.
    pub(super) fn confirms_too_early(&self) -> bool {
        let is_early = (WAITAOF_EXISTS_SINCE..WAITAOF_SINCE).contains(&self.version);
        self.aof && self.policy == Policy::Sometimes && is_early
    }

    /// What a write reaches, given that the file is seen to be `complete`.
    pub(super) fn reach(&self, complete: bool) -> Reach {
        let always = complete && self.policy == Policy::Always;
        let confirmed =
            complete && self.policy == Policy::Sometimes && self.version >= WAITAOF_SINCE;
        let plain = if always { Durability::Fsynced } else { Durability::Memory };
        let most = match always || confirmed {
            true if self.replicated => Durability::Replicated,
            true => Durability::Fsynced,
            false => Durability::Memory,
        };
        Reach { plain, most }
    }
}

/// Whether a replica follows: `ip=…,port=…,state=online,offset=…,lag=…`.
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

    /// What a write reaches: `plain` and `most`, by their first letters.
    fn reach(info: &str, settings: &[(&str, &str)]) -> String {
        let facts = Facts::read(info, &owned(settings));
        let Reach { plain, most } = facts.reach(facts.aof && !facts.rewriting);
        format!("{:.1}{:.1}", format!("{plain:?}"), format!("{most:?}"))
    }

    fn synced<'a>(policy: &'a str, on_rewrite: &'a str) -> [(&'a str, &'a str); 2] {
        [("appendfsync", policy), ("no-appendfsync-on-rewrite", on_rewrite)]
    }

    #[test]
    fn what_settings_promise_and_what_can_be_asked_for() {
        assert_eq!(reach(INFO, &synced("always", "no")), "FR");
        assert_eq!(reach(INFO, &synced("everysec", "no")), "MR");
        assert_eq!(reach(INFO, &synced("always", "yes")), "MR", "not while it is rewritten");
        assert_eq!(reach(INFO, &synced("no", "no")), "MM", "nobody syncs");
        assert_eq!(reach(INFO, &[]), "MR", "what cannot be read has to be confirmed");
        let old = INFO.replace("7.4.3", "7.0.15");
        assert_eq!(reach(&old, &synced("always", "no")), "FR");
        assert_eq!(reach(&old, &synced("everysec", "no")), "MM");
        assert_eq!(reach(&old, &[]), "MM");
    }

    #[test]
    fn a_file_that_is_not_whole_or_not_written_is_none() {
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
    fn a_version_that_confirms_too_early_reaches_memory() {
        for (version, reached, is_early) in [
            ("7.0.15", "MM", false),
            ("7.2.4", "MM", true),
            ("7.4.2", "MM", true),
            ("7.4.3", "MR", false),
            ("8.0.0", "MR", false),
        ] {
            let info = INFO.replace("7.4.3", version);
            assert_eq!(reach(&info, &synced("everysec", "no")), reached, "{version}");
            let facts = |policy| Facts::read(&info, &owned(&synced(policy, "no")));
            assert_eq!(facts("everysec").confirms_too_early(), is_early, "{version}");
            assert!(!facts("always").confirms_too_early(), "{version}");
        }
    }

    fn owned(settings: &[(&str, &str)]) -> Vec<(String, String)> {
        settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    impl Facts {
        /// Of a Redis that syncs by this policy, with a replica or without.
        pub(in crate::store::redis) fn example(policy: &str, is_replicated: bool) -> Facts {
            let info = if is_replicated { INFO } else { INFO.split("slave0").next().unwrap() };
            Facts::read(info, &owned(&synced(policy, "no")))
        }
    }
}
