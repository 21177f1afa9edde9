//! Scripts: one `.lua` per verb, called by its hash. A server that does not know one (it was restarted,
//! failed over, or flushed) is given it and asked again, so nobody has to load anything first.
//!
//! A line `--#include name` stands for `lib/name.lua`. The first line names the flags of the script:
//! Redis 7 wants them behind a shebang, which earlier ones do not know.

use super::enqueue;
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    self, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value,
};

/// A script as it is written.
pub(super) struct Source {
    /// The verb.
    pub(super) name: &'static str,
    pub(super) source: &'static str,
}

macro_rules! scripts {
    ($($constant:ident = $name:literal,)*) => {
        /// Which script.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Verb { $($constant,)* }

        /// Every script, in the order of [`Verb`].
        pub(super) const ALL: &[Source] = &[$(
            Source { name: $name, source: include_str!(concat!($name, ".lua")) },
        )*];
    };
}

scripts! {
    Claim = "claim",
    Delete = "delete",
    Detach = "detach",
    Enqueue = "enqueue",
    Extend = "extend",
    Get = "get",
    Heal = "heal",
    List = "list",
    Open = "open",
    Prune = "prune",
    Reap = "reap",
    Redrive = "redrive",
    Reschedule = "reschedule",
    Running = "running",
    Settle = "settle",
    Stats = "stats",
    Topics = "topics",
    Unclaim = "unclaim",
}

/// What scripts include; `actions` is made of [`enqueue::actions`].
pub(super) const SOURCES: [(&str, &str); 4] = [
    ("clock", include_str!("lib/clock.lua")),
    ("record", include_str!("lib/record.lua")),
    ("lifecycle", include_str!("lib/lifecycle.lua")),
    ("arrive", include_str!("lib/arrive.lua")),
];

const FLAGS: &str = "-- flags:";
const INCLUDE: &str = "--#include ";
/// The first Redis that reads a shebang.
const SHEBANG_SINCE: u32 = 7;

/// All scripts for one version of Redis.
pub(super) struct Scripts {
    prefix: String,
    scripts: Vec<redis::Script>,
    codes: Vec<String>,
}

/// A call of a script, with its arguments.
pub(super) struct Call {
    verb: Verb,
    command: Cmd,
}

// === impl Scripts ===

impl Scripts {
    /// The scripts for a server of this major version; `prefix`: of all keys.
    pub(super) fn new(prefix: String, major: u32) -> Scripts {
        let codes: Vec<_> = ALL.iter().map(|script| assemble(script.source, major)).collect();
        let scripts = codes.iter().map(|code| redis::Script::new(code)).collect();
        Scripts { prefix, scripts, codes }
    }

    /// A call of `verb`; `now`: the time, where a test drives the clock.
    pub(super) fn call(&self, verb: Verb, now: Option<i64>) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.scripts[verb as usize].get_hash()).arg(1).arg(&self.prefix);
        match now {
            Some(now) => command.arg(now),
            None => command.arg(""),
        };
        Call { verb, command }
    }

    /// Runs a call. A script that the server does not know has done nothing, so it is loaded and
    /// called again.
    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        call: &Call,
    ) -> Result<Value, RedisError> {
        let answer = call.command.query_async(connection).await;
        match answer {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                tracing::debug!(
                    script = ALL[call.verb as usize].name,
                    "the script is loaded again"
                );
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(&self.codes[call.verb as usize]);
                load.query_async::<Value>(connection).await?;
                call.command.query_async(connection).await
            }
            answer => answer,
        }
    }
}

// === impl Call ===

impl Call {
    /// Adds an argument.
    pub(super) fn arg(&mut self, value: impl ToRedisArgs) -> &mut Call {
        self.command.arg(value);
        self
    }

    /// Which script it is.
    pub(super) fn verb(&self) -> Verb {
        self.verb
    }
}

// === impl Verb ===

impl Verb {
    /// Whether it changes nothing: its failure leaves no doubt.
    pub(super) fn only_reads(self) -> bool {
        use Verb::{Get, List, Reap, Running, Stats, Topics};
        matches!(self, Get | List | Reap | Running | Stats | Topics)
    }
}

/// The code that a server of this major version is given.
fn assemble(source: &str, major: u32) -> String {
    let (first, rest) = source.split_once('\n').unwrap_or((source, ""));
    let flags = first.strip_prefix(FLAGS).unwrap_or_default().trim();
    let mut code = match (major >= SHEBANG_SINCE, flags) {
        (true, "") => "#!lua\n".to_owned(),
        (true, flags) => format!("#!lua flags={flags}\n"),
        // Before version 7 a script whose first write needs no memory may do all others too.
        (false, "allow-oom") => "redis.call('HDEL', KEYS[1], '')\n".to_owned(),
        (false, _) => String::new(),
    };
    for line in rest.lines() {
        match line.trim_start().strip_prefix(INCLUDE) {
            Some(name) => code.push_str(&included(name)),
            None => code.push_str(line),
        }
        code.push('\n');
    }
    code
}

fn included(name: &str) -> String {
    if name == "actions" {
        return format!("local actions = '{}'", enqueue::actions());
    }
    let found = SOURCES.iter().find(|(known, _)| *known == name);
    found.map_or_else(|| format!("error('nothing is called {name}')"), |(_, code)| (*code).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_names_its_flags_and_its_contract() {
        for Source { name, source } in ALL {
            assert!(source.starts_with(FLAGS), "{name}: no flags");
            assert!(source.contains(&format!("\n-- {name}: ")), "{name}: does not say what it is");
            assert!(source.contains("\n-- Reply: "), "{name}: does not say what it answers");
            assert!(!assemble(source, 7).contains(INCLUDE), "{name}: an include is left");
            assert!(!assemble(source, 7).contains("nothing is called"), "{name}: a wrong include");
        }
    }

    #[test]
    fn only_what_may_grow_the_store_stops_when_it_is_full() {
        let flags = |source: &str| source.lines().next().unwrap().to_owned();
        let refused: Vec<_> =
            ALL.iter().filter(|s| flags(s.source) == "-- flags:").map(|s| s.name).collect();
        assert_eq!(refused, ["enqueue", "redrive", "reschedule"]);
    }

    #[test]
    fn a_claim_leases_as_many_bytes_as_one_call_may_carry() {
        let bound =
            format!("bytes_left, asks, general = {},", crate::domain::limit::CALL_BYTES_MAX);
        assert!(ALL[Verb::Claim as usize].source.contains(&bound), "{bound}");
    }

    #[test]
    fn a_shebang_is_for_those_who_know_it() {
        assert!(
            assemble("-- flags: allow-oom\nreturn 1\n", 7).starts_with("#!lua flags=allow-oom\n")
        );
        assert!(assemble("-- flags:\nreturn 1\n", 8).starts_with("#!lua\n"));
        assert!(!assemble("-- flags: allow-oom\nreturn 1\n", 6).contains("#!"));
    }
}
