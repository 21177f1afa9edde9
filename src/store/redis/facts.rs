//! What a Redis says of itself, and what a write reaches by that:
//!
//! - `appendfsync always` syncs before it answers: FSYNCED, and nothing has to be asked.
//! - `everysec` answers first. WAITAOF (since Redis 7.2) waits for the sync, if it is to be believed: Redis
//!   before 7.4.3, and Valkey 9.1 still, confirm what is not synced yet. So it is tried before it is used.
//! - A replica confirms what it has received to WAIT, which all versions know.

use crate::domain::Durability;
use crate::store::Reach;

use super::check::{field, version};

/// The first version with WAITAOF.
const WAITAOF_SINCE: (u32, u32) = (7, 2);
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
    pub(super) run: String,
    /// There is to be an append-only file.
    pub(super) keeps: bool,
    /// There is one, and it can be written.
    pub(super) aof: bool,
    /// It is being written anew, or that has failed: the first time it is not whole before.
    pub(super) rewriting: bool,
    policy: Policy,
    has_waitaof: bool,
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
            run: field(info, "run_id").unwrap_or_default().to_owned(),
            keeps: is("aof_enabled", "1"),
            aof: is("aof_enabled", "1") && is("aof_last_write_status", "ok") && is("loading", "0"),
            rewriting: !is("aof_rewrite_in_progress", "0")
                || !is("aof_rewrite_scheduled", "0")
                || !is("aof_last_bgrewrite_status", "ok"),
            policy,
            has_waitaof: version(info) >= WAITAOF_SINCE,
            replicated: (0..).map_while(|n| field(info, &format!("slave{n}"))).any(is_up_to_date),
        }
    }

    /// Whether a write is only known to be on disk when WAITAOF says so.
    pub(super) fn needs_waitaof(&self) -> bool {
        self.policy == Policy::Sometimes && self.has_waitaof
    }

    /// What a write reaches, given that the file is seen to be `complete` and WAITAOF was found to be true.
    pub(super) fn reach(&self, complete: bool, believed: bool) -> Reach {
        let always = complete && self.policy == Policy::Always;
        let confirmed = complete && self.needs_waitaof() && believed;
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

    /// What a write reaches where WAITAOF is true: `plain` and `most`, by their first letters.
    fn reach(info: &str, settings: &[(&str, &str)]) -> String {
        let settings: Vec<_> =
            settings.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        let facts = Facts::read(info, &settings);
        let Reach { plain, most } = facts.reach(facts.aof && !facts.rewriting, true);
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
    fn a_confirmation_that_is_not_true_is_worth_nothing() {
        let settings = synced("everysec", "no").map(|(n, v)| (n.to_owned(), v.to_owned()));
        let facts = Facts::read(INFO, &settings);
        assert_eq!(facts.reach(true, false).most, Durability::Memory);
        let settings = synced("always", "no").map(|(n, v)| (n.to_owned(), v.to_owned()));
        let facts = Facts::read(INFO, &settings);
        assert_eq!(facts.reach(true, false).most, Durability::Replicated, "it is not needed");
    }
}
