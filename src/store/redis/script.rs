//! Scripts: one `.lua` per verb, called by its hash. A server that does not know one (it was restarted,
//! failed over, or flushed) is given it and asked again, so nobody has to load anything first.
//!
//! A line `--#include name` stands for `lib/name.lua`, and a name behind a `$` for what [`super::layout`] says. The
//! first line names the flags of the script: Redis 7 wants them behind a shebang, which earlier ones do not know.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    self, Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value,
};

use tokio::time::Instant;

use crate::domain::Time;

use super::layout;

/// A script as it is written.
pub(super) struct ScriptSource {
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
        pub(super) const ALL: &[ScriptSource] = &[$(
            ScriptSource { name: $name, source: include_str!(concat!($name, ".lua")) },
        )*];
    };
}

scripts! {
    Beat = "beat",
    Claim = "claim",
    Commit = "commit",
    Enqueue = "enqueue",
    Extend = "extend",
    Get = "get",
    Heal = "heal",
    Ids = "ids",
    Info = "info",
    Kept = "kept",
    List = "list",
    Load = "load",
    Open = "open",
    Prune = "prune",
    Put = "put",
    Reap = "reap",
    Running = "running",
    SetState = "set_state",
    Settle = "settle",
    Stats = "stats",
    Tidy = "tidy",
    Tie = "tie",
    Topics = "topics",
    Void = "void",
}

/// What scripts include.
pub(super) const SOURCES: [(&str, &str); 10] = [
    ("clock", include_str!("lib/clock.lua")),
    ("away", include_str!("lib/away.lua")),
    ("tell", include_str!("lib/tell.lua")),
    ("recall", include_str!("lib/recall.lua")),
    ("memory", include_str!("lib/memory.lua")),
    ("line", include_str!("lib/line.lua")),
    ("place", include_str!("lib/place.lua")),
    ("record", include_str!("lib/record.lua")),
    ("commit", include_str!("lib/commit.lua")),
    ("claim_general", include_str!("lib/claim_general.lua")),
];

/// The commands that scripts call.
pub(super) fn commands() -> impl Iterator<Item = &'static str> {
    let codes = ALL.iter().map(|script| script.source).chain(SOURCES.map(|(_, code)| code));
    let names = codes.flat_map(|code| code.split("call('").skip(1));
    let mut names: Vec<_> = names.filter_map(|rest| rest.split('\'').next()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

const FLAGS: &str = "-- flags:";
const INCLUDE: &str = "--#include ";
/// The first Redis that reads a shebang.
const SHEBANG_SINCE: u32 = 7;

/// All scripts, as the Redis reads them that is there.
pub(super) struct Scripts {
    prefix: String,
    /// Who calls, for the scripts that tell others.
    caller: Vec<u8>,
    shebang: AtomicBool,
}

/// The same for all shards: for those that do not know a shebang, and for those that want one.
static VARIANTS: LazyLock<[ScriptVariant; 2]> = LazyLock::new(|| {
    let bodies: Vec<_> = ALL.iter().map(|script| resolved_body(script.source)).collect();
    [SHEBANG_SINCE - 1, SHEBANG_SINCE].map(|major| ScriptVariant::new(&bodies, major))
});

/// All scripts for one kind of Redis.
struct ScriptVariant {
    scripts: Vec<redis::Script>,
    codes: Vec<String>,
}

/// A call of a script, with its arguments.
pub(super) struct ScriptCall {
    verb: Verb,
    shebang: bool,
    command: Cmd,
    /// When its window ends, here.
    window_end: Option<Instant>,
}

/// What a call says of the time, as its first argument (`lib/clock.lua`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExecutionTime {
    /// Redis executes it whenever it arrives.
    Always,
    /// Redis executes it until this time of its clock.
    Until(Time),
    /// A test drives the clock, which shows this time.
    TestClock(Time),
}

/// Room for what every call has: the command, the script's hash, keys, time.
const ARGS_FIXED: usize = 8;
/// As many bytes as these usually have.
const BYTES_FIXED: usize = 128;

// === impl Scripts ===

impl Scripts {
    /// The scripts; `prefix`: of all keys; `caller`: see [`super::keys::caller`].
    pub(super) fn new(prefix: String, caller: Vec<u8>) -> Scripts {
        Scripts { prefix, caller, shebang: AtomicBool::new(true) }
    }

    /// From now on a Redis of this major version runs them.
    pub(super) fn set_major_version(&self, major: u32) {
        self.shebang.store(major >= SHEBANG_SINCE, Ordering::Relaxed);
    }

    /// A call of `verb`; `room`: how many arguments it gets and of how many bytes, as far as known.
    pub(super) fn call(&self, verb: Verb, at: ExecutionTime, room: (usize, usize)) -> ScriptCall {
        debug_assert!(
            at != ExecutionTime::Always || !verb.needs_window(),
            "{verb:?} without a window"
        );
        let shebang = self.shebang.load(Ordering::Relaxed);
        let mut command = Cmd::with_capacity(ARGS_FIXED + room.0, BYTES_FIXED + room.1);
        command.arg("EVALSHA").arg(self.hash(verb, shebang));
        if verb.publishes_lease_events() {
            command.arg(2).arg(&self.prefix).arg(&self.caller);
        } else {
            command.arg(1).arg(&self.prefix);
        }
        at.add_to(&mut command);
        ScriptCall { verb, shebang, command, window_end: None }
    }

    fn hash(&self, verb: Verb, shebang: bool) -> &str {
        VARIANTS[usize::from(shebang)].scripts[verb as usize].get_hash()
    }

    /// The call for the Redis that is there now: it was made for another one, or before any was known.
    fn command_for_current(&self, call: &ScriptCall, shebang: bool) -> Cmd {
        call.with_command("EVALSHA", self.hash(call.verb, shebang))
    }

    /// Runs a call. A script that the server does not know has done nothing, so it is sent whole, which the
    /// server keeps; in one command, because it may forget what it was just given.
    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        call: &ScriptCall,
    ) -> Result<Value, RedisError> {
        let shebang = self.shebang.load(Ordering::Relaxed);
        let suited = (call.shebang != shebang).then(|| self.command_for_current(call, shebang));
        let command = suited.as_ref().unwrap_or(&call.command);
        let answer = command.query_async(connection).await;
        match answer {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                tracing::debug!(script = ALL[call.verb as usize].name, "the script is sent whole");
                let code = &VARIANTS[usize::from(shebang)].codes[call.verb as usize];
                call.with_command("EVAL", code).query_async(connection).await
            }
            answer => answer,
        }
    }
}

// === impl Form ===

impl ScriptVariant {
    fn new(bodies: &[String], major: u32) -> ScriptVariant {
        let codes =
            ALL.iter().zip(bodies).map(|(script, body)| script_header(script.source, major) + body);
        let codes: Vec<_> = codes.collect();
        let scripts = codes.iter().map(|code| redis::Script::new(code)).collect();
        ScriptVariant { scripts, codes }
    }
}

// === impl Call ===

impl ScriptCall {
    /// The same call of `script` by another command.
    fn with_command(&self, command: &str, script: &str) -> Cmd {
        let mut renamed = redis::cmd(command);
        renamed.arg(script);
        for arg in self.command.args_iter().skip(2) {
            match arg {
                Arg::Simple(bytes) => renamed.arg(bytes),
                _ => continue,
            };
        }
        renamed
    }

    /// Adds an argument.
    pub(super) fn arg(&mut self, value: impl ToRedisArgs) -> &mut ScriptCall {
        self.command.arg(value);
        self
    }

    /// Which script it is.
    pub(super) fn verb(&self) -> Verb {
        self.verb
    }

    /// The same call, with a window that ends at `last`, here.
    pub(super) fn with_window_end(self, last: Instant) -> ScriptCall {
        ScriptCall { window_end: Some(last), ..self }
    }

    /// When its window ends, here: from then on Redis does not execute it any more. `None`: there is no window.
    pub(super) fn window_end(&self) -> Option<Instant> {
        self.window_end
    }

    /// The same call with another latest time of Redis's clock.
    pub(super) fn with_execution_end(&self, until: Time) -> ScriptCall {
        let time = if self.verb.publishes_lease_events() { 5 } else { 4 };
        let mut command = Cmd::new();
        for (index, arg) in self.command.args_iter().enumerate() {
            match arg {
                _ if index == time => ExecutionTime::Until(until).add_to(&mut command),
                Arg::Simple(bytes) => drop(command.arg(bytes)),
                _ => {}
            }
        }
        ScriptCall { verb: self.verb, shebang: self.shebang, command, window_end: self.window_end }
    }
}

// === impl RunAt ===

impl ExecutionTime {
    fn add_to(self, command: &mut Cmd) {
        match self {
            ExecutionTime::Always => command.arg(""),
            ExecutionTime::Until(latest) => command.arg(format!("<{}", latest.0)),
            ExecutionTime::TestClock(now) => command.arg(now.0),
        };
    }
}

// === impl Verb ===

impl Verb {
    /// Whether it changes nothing that anybody asks for: its failure leaves no doubt.
    pub(super) fn only_reads(self) -> bool {
        use Verb::{Get, Ids, Info, Kept, List, Load, Prune, Reap, Running, Stats, Topics};
        matches!(
            self,
            Get | Ids | Info | Kept | List | Load | Prune | Reap | Running | Stats | Topics
        )
    }

    /// Whether it changes what others see and no lease token guards it: it is executed within a window only
    /// (`write_window.rs`). What else writes is guarded by a token (settle, tie, and a claim by its nonce), or
    /// changes nothing when it is executed again; what commits is guarded by versions, and those that no token guards, too,
    /// are given a window by `optimistic_commit.rs`. A token does not tell an Extend from the one that followed it.
    fn needs_window(self) -> bool {
        use Verb::{
            Beat, Claim, Commit, Enqueue, Extend, Get, Heal, Ids, Info, Kept, List, Load, Open,
            Prune, Put, Reap, Running, SetState, Settle, Stats, Tidy, Tie, Topics, Void,
        };
        // All are named: nobody adds one without saying which it is.
        match self {
            Beat | Enqueue | Extend | SetState => true,
            Claim | Commit | Put | Tie | Settle | Void | Heal | Open | Prune | Tidy | Get | Ids
            | Info | Kept | List | Load | Reap | Running | Stats | Topics => false,
        }
    }

    /// Whether its answer begins with the time of Redis's clock.
    pub(super) fn answers_time(self) -> bool {
        use Verb::{Beat, Commit, Enqueue, Extend, Load, Put, SetState, Tie};
        matches!(self, Beat | Commit | Enqueue | Extend | Load | Put | SetState | Tie)
    }

    /// Whether it ends or changes leases, and so tells their owners (`lib/tell.lua`).
    fn publishes_lease_events(self) -> bool {
        matches!(self, Verb::Tie | Verb::Commit | Verb::Extend | Verb::Put | Verb::Settle)
    }
}

/// What the code begins with that a server of this major version is given.
fn script_header(source: &str, major: u32) -> String {
    let first = source.lines().next().unwrap_or_default();
    let flags = first.strip_prefix(FLAGS).unwrap_or_default().trim();
    match (major >= SHEBANG_SINCE, flags) {
        (true, "") => "#!lua\n".to_owned(),
        (true, flags) => format!("#!lua flags={flags}\n"),
        // Before version 7 a script whose first write needs no memory may do all others too.
        (false, "allow-oom") => "redis.call('HDEL', KEYS[1], '')\n".to_owned(),
        (false, _) => String::new(),
    }
}

/// The rest of it, whole.
fn resolved_body(source: &str) -> String {
    let mut code = String::new();
    include_into(&mut code, source.split_once('\n').map_or("", |(_, rest)| rest));
    layout::resolve(&code)
}

/// Adds `source` with what it includes.
fn include_into(code: &mut String, source: &str) {
    for line in source.lines() {
        match line.trim_start().strip_prefix(INCLUDE) {
            Some(name) => match SOURCES.iter().find(|(known, _)| *known == name) {
                Some((_, source)) => include_into(code, source),
                None => code.push_str(&format!("error('nothing is called {name}')\n")),
            },
            None => code.extend([line, "\n"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_names_its_flags_and_its_contract() {
        for ScriptSource { name, source } in ALL {
            assert!(source.starts_with(FLAGS), "{name}: no flags");
            assert!(source.contains(&format!("\n-- {name}: ")), "{name}: does not say what it is");
            assert!(source.contains("\n-- Reply: "), "{name}: does not say what it answers");
            let code = resolved_body(source);
            assert!(!code.contains(INCLUDE), "{name}: an include is left");
            assert!(!code.contains("nothing is called"), "{name}: a wrong include");
            let unknown = code.lines().find(|line| line.contains('$'));
            assert_eq!(unknown, None, "{name}: names what no layout has");
        }
    }

    #[test]
    fn scripts_with_lease_events_get_the_caller() {
        let scripts = Scripts::new("P".into(), b"P1234".to_vec());
        for (verb, name) in [
            (Verb::Commit, "commit"),
            (Verb::Extend, "extend"),
            (Verb::Settle, "settle"),
            (Verb::Claim, "claim"),
            (Verb::Void, "void"),
        ] {
            let code = resolved_body(ALL[verb as usize].source);
            assert_eq!(ALL[verb as usize].name, name);
            assert_eq!(
                verb.publishes_lease_events(),
                code.contains("local function tell("),
                "{name}"
            );
            assert_eq!(verb.publishes_lease_events(), code.contains("tell_all()"), "{name}");
            let packed = scripts
                .call(verb, ExecutionTime::TestClock(Time(7)), (0, 0))
                .command
                .get_packed_command();
            let called = packed.windows(5).any(|bytes| bytes == b"P1234");
            assert_eq!(verb.publishes_lease_events(), called, "{name}");
        }
    }

    #[test]
    fn only_what_may_grow_the_store_stops_when_it_is_full() {
        let flags = |source: &str| source.lines().next().unwrap().to_owned();
        let refused: Vec<_> =
            ALL.iter().filter(|s| flags(s.source) == "-- flags:").map(|s| s.name).collect();
        assert_eq!(refused, ["enqueue", "put"]);
    }

    #[test]
    fn call_is_adapted_to_the_redis_version() {
        let scripts = Scripts::new("p".into(), b"p1234".to_vec());
        let mut early = scripts.call(Verb::Get, ExecutionTime::TestClock(Time(7)), (0, 0));
        early.arg("a").arg(2);
        scripts.set_major_version(6);
        let mut late = scripts.call(Verb::Get, ExecutionTime::TestClock(Time(7)), (0, 0));
        late.arg("a").arg(2);
        let packed = |command: &Cmd| command.get_packed_command();
        assert_ne!(packed(&early.command), packed(&late.command));
        assert_eq!(packed(&scripts.command_for_current(&early, false)), packed(&late.command));
    }

    #[test]
    fn shebang_only_since_redis_7() {
        assert_eq!(script_header("-- flags: allow-oom\nreturn 1\n", 7), "#!lua flags=allow-oom\n");
        assert_eq!(script_header("-- flags:\nreturn 1\n", 8), "#!lua\n");
        assert!(!script_header("-- flags: allow-oom\nreturn 1\n", 6).contains("#!"));
        assert_eq!(resolved_body("-- flags: allow-oom\nreturn 1\n"), "return 1\n");
    }
}
