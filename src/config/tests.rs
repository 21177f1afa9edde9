//! Tests of the way from layers to settings; the parsers have their own tests beside them.

use super::duration::{minutes, secs};
use super::*;
use crate::contract::duration_text::parse_duration;
use crate::domain::ring::ShardState;
use crate::tls::{ClientAuth, ClientCa};

/// Resolves a file, variables and flags on a made-up machine.
fn settings(
    file: &str,
    variables: &[(&str, &str)],
    flags: &ConfigFlags,
) -> Result<Config, Vec<String>> {
    let mut mistakes = Vec::new();
    let file = file::read("ringq.toml", file, &mut mistakes);
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let environment = ConfigLayer::environment(variables, &mut mistakes);
    let machine = Machine { cpus: 3, hostname: Some("host-1".to_owned()) };
    let otel = OtelVariables::default();
    resolve(vec![file, environment, ConfigLayer::flags(flags)], mistakes, &machine, otel)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
}

fn flags(values: &[(&'static str, &str)]) -> ConfigFlags {
    let values = values.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    ConfigFlags { values, ..ConfigFlags::default() }
}

fn defaults() -> Config {
    settings("", &[], &ConfigFlags::default()).unwrap()
}

#[test]
fn the_default_file_gives_the_documented_defaults() {
    let want = Config {
        listen: "127.0.0.1:7700".parse().unwrap(),
        http_listen: "127.0.0.1:7701".parse().unwrap(),
        http_json: true,
        identities: None,
        topics: None,
        insecure: false,
        metrics_open: false,
        audit_log: None,
        audit_calls: AuditCalls::Changes,
        tls: None,
        shards: vec![ShardConfig::try_new("s0", "sqlite:ringq-data/ringq.db").unwrap()],
        data_dir: "ringq-data".into(),
        redis_tls: RedisTlsFiles::default(),
        replica: "host-1".to_owned(),
        ready_file: None,
        shutdown_grace: None,
        drain_delay: secs(0),
        stream_max_age: Some(minutes(30)),
        max_streams: 1_000,
        max_concurrent_requests: 10_000,
        max_message_mib: 256,
        max_connections: 10_000,
        max_connections_per_peer: 5_000,
        max_http_connections: 512,
        max_http_connections_per_peer: 256,
        request_timeout: secs(30),
        log_format: LogFormat::Text,
        log_filter: "info".to_owned(),
        otlp: OtlpConfig::default(),
        threads: 3,
    };
    assert_eq!(defaults(), want);
    assert_eq!(settings(DEFAULTS, &[], &ConfigFlags::default()), Ok(want), "also as a file");
}

#[test]
fn the_default_file_names_every_setting_and_its_examples_are_valid() {
    let mut uncommented = String::new();
    let names = KEYS.into_iter().chain(["name", "url", "weight", "state"]);
    let examples: Vec<_> = names.map(|key| format!("# {key} = ")).collect();
    for line in DEFAULTS.lines() {
        let example = line == "# [[shard]]" || examples.iter().any(|key| line.starts_with(key));
        uncommented += if example { &line[2..] } else { line };
        uncommented += "\n";
    }
    let table: toml::Table = toml::from_str(&uncommented).unwrap();
    let mut all: Vec<_> = KEYS.into_iter().chain(["shard"]).collect();
    all.sort_unstable();
    assert_eq!(table.keys().map(String::as_str).collect::<Vec<_>>(), all);
    // Certificates are for encrypted shards, and the example of a shard is not encrypted.
    let flags = ConfigFlags { shards: vec!["a=rediss://h".to_owned()], ..ConfigFlags::default() };
    settings(&uncommented, &[], &flags).unwrap();
    let others = uncommented.lines().filter(|line| !line.starts_with("redis_"));
    let others = others.collect::<Vec<_>>().join("\n");
    let config = settings(&others, &[], &ConfigFlags::default()).unwrap();
    assert_eq!(config.shards, defaults().shards, "the example is the default");
}

/// Returns the bounds of a setting in docs/configuration.md, which the table of the settings there gives as `1 to
/// 256`.
fn documented_bounds(key: &str) -> Option<[&'static str; 2]> {
    let table = include_str!("../../docs/configuration.md");
    let row = table.lines().find(|line| line.starts_with(&format!("| `{key}` | ")));
    let words: Vec<_> = row.unwrap().split_whitespace().collect();
    let begins = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let bounds =
        words.windows(3).find(|words| words[1] == "to" && begins(words[0]) && begins(words[2]));
    bounds.map(|words| {
        [words[0], words[2]].map(|word| word.trim_end_matches(|c: char| !c.is_alphanumeric()))
    })
}

/// Returns the values just below the first and just above the last value.
fn beyond([first, last]: [&str; 2]) -> [String; 2] {
    match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => [(first - 1).to_string(), (last + 1).to_string()],
        _ => {
            let millis = |text| parse_duration(text).unwrap().as_millis();
            let below = millis(first).checked_sub(1);
            [
                below.map_or("-1ms".to_owned(), |below| format!("{below}ms")),
                format!("{}ms", millis(last) + 1),
            ]
        }
    }
}

#[test]
fn every_bound_matches_the_readme() {
    let takes = |key, text: &str| settings("", &[], &flags(&[(key, text)])).is_ok();
    let mut bounded = Vec::new();
    for key in KEYS {
        let Some(bounds) = documented_bounds(key).filter(|_| key != "replica") else { continue };
        assert_eq!(bounds.map(|text| takes(key, text)), [true; 2], "{key}: {bounds:?}");
        let beyond = beyond(bounds);
        assert_eq!(beyond.each_ref().map(|text| takes(key, text)), [false; 2], "{key}: {beyond:?}");
        bounded.push(key);
    }
    let numbers = ["threads", "max_streams", "max_concurrent_requests", "max_message_mib"];
    let connections = [
        "max_connections",
        "max_connections_per_peer",
        "max_http_connections",
        "max_http_connections_per_peer",
    ];
    let times = ["request_timeout", "stream_max_age", "drain_delay", "shutdown_grace"];
    assert_eq!(bounded, [&numbers[..], &connections, &times].concat());
    let [first, last] =
        documented_bounds("replica").unwrap().map(|text| text.parse::<usize>().unwrap());
    let lengths = [first - 1, first, last, last + 1];
    assert_eq!(
        lengths.map(|chars| takes("replica", &"r".repeat(chars))),
        [false, true, true, false]
    );
}

#[test]
fn later_places_win() {
    let file = "listen = '127.0.0.1:1'\nhttp_listen = '127.0.0.1:2'\nthreads = 2";
    let variables = [("RINGQ_HTTP_LISTEN", "127.0.0.1:3"), ("RINGQ_THREADS", "4")];
    let config = settings(file, &variables, &flags(&[("threads", "8")])).unwrap();
    assert_eq!(config.listen.port(), 1);
    assert_eq!(config.http_listen.port(), 3);
    assert_eq!(config.threads, 8);
}

#[test]
fn shards_are_replaced_not_added() {
    let file = "[[shard]]\nname = 'a'\nurl = 'sqlite:a.db'";
    let variables = [("RINGQ_SHARDS", "\n b=sqlite:b.db\n")];
    let none = ConfigFlags::default();
    let flag =
        ConfigFlags { shards: vec!["c=sqlite::memory:".to_owned()], ..ConfigFlags::default() };
    for (config, want) in [
        (settings(file, &[], &none), "a"),
        (settings(file, &variables, &none), "b"),
        (settings(file, &variables, &flag), "c"),
    ] {
        let shards = config.unwrap().shards;
        assert_eq!(shards.iter().map(|shard| shard.name.as_str()).collect::<Vec<_>>(), [want]);
    }
}

#[test]
fn the_default_shard_follows_the_data_dir() {
    let config = settings("", &[("RINGQ_DATA_DIR", "/data")], &ConfigFlags::default()).unwrap();
    assert_eq!(config.shards[0].url.to_string(), "sqlite:/data/ringq.db");
}

#[test]
fn defaults_follow_the_machine_within_bounds() {
    for (cpus, threads) in [(1, 1), (2, 1), (3, 3), (64, 4)] {
        assert_eq!(Machine { cpus, hostname: None }.threads(), threads);
    }
    for (hostname, replica) in
        [(None, "ringq"), (Some("no good"), "ringq"), (Some("pod-0"), "pod-0")]
    {
        let machine = Machine { cpus: 1, hostname: hostname.map(str::to_owned) };
        assert_eq!(machine.replica(), replica);
    }
}

#[test]
fn a_mistake_in_a_variable_reads_like_a_sentence() {
    for (name, value, want) in [
        ("LISTEN", "foo", "listen: \"foo\" is not an address like 127.0.0.1:7700"),
        ("LISTN", "x", "environment: unknown variable RINGQ_LISTN; did you mean RINGQ_LISTEN?"),
        ("SHARD", "x", "environment: unknown variable RINGQ_SHARD; did you mean RINGQ_SHARDS?"),
        (
            "SHARDS",
            "s0",
            "shard: is not written as NAME=URL, like a=redis://localhost:6379; a url has no blanks",
        ),
        (
            "LISTEN",
            "127.0.0.1:7701",
            "http_listen: 127.0.0.1:7701 is the address of listen, too; choose another port",
        ),
        ("LOG_FILTER", "ringq=\u{fffd}", "log_filter: "),
        ("LOG_FILTER", "inof", "log_filter: "),
    ] {
        let variable = format!("RINGQ_{name}");
        let mistakes = settings("", &[(&variable, value)], &ConfigFlags::default()).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].starts_with(want), "{}\n{want}", mistakes[0]);
        assert!(mistakes[0].ends_with(&format!(" (from {variable})")), "{}", mistakes[0]);
    }
}

#[test]
fn a_mistake_in_a_file_names_its_key() {
    for (file, want) in [
        (
            "listne = 'x'",
            "listne: unknown setting listne; did you mean listen? (from listne in ringq.toml)",
        ),
        (
            "threads = 1.5",
            "threads: is of type float, not text, a whole number or a boolean (from threads in ringq.toml)",
        ),
        ("data_dir = ''", "data_dir: must not be empty (from data_dir in ringq.toml)"),
        (
            "shard = 's0=sqlite:a'",
            "shard: is not written as [[shard]] tables with name and url (from shard in ringq.toml)",
        ),
        ("[[shard]]\nname = 's0'", "shard: has no url (from shard[0] in ringq.toml)"),
        (
            "[[shard]]\nname = 's0'\nurl = 'sqlite:a'\nthreads = 2",
            "threads: stands below [[shard]], move it above (from shard[0].threads in ringq.toml)",
        ),
        (
            "listen = '127.0.0.1:1'\nlisten",
            "config: is not TOML: line 2: it is not written as key = \"value\" (from ringq.toml)",
        ),
        (
            "listen = 127.0.0.1:1 # here",
            "config: is not TOML: line 1: text stands in quotes: listen = \"127.0.0.1:1\" \
             (from ringq.toml)",
        ),
        ("listen =", "config: is not TOML: line 1: listen has no value (from ringq.toml)"),
        (
            "threads = 4\nthreads = 5",
            "config: is not TOML: line 2: duplicate key (from ringq.toml)",
        ),
    ] {
        let mistakes = settings(file, &[], &ConfigFlags::default()).unwrap_err();
        assert_eq!(mistakes, [want]);
    }
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    let file = "colour = 1\nmax_streams = 0\nlog_format = 'xml'";
    let variables = [("RINGQ_LISTEN", "foo"), ("RINGQ_NOPE", "1")];
    let flags = ConfigFlags {
        shards: vec!["a=sqlite:a.db".to_owned(), "B=redis://host".to_owned(), "a=x".to_owned()],
        ..flags(&[("threads", "0"), ("drain_delay", "1h")])
    };
    let mistakes = settings(file, &variables, &flags).unwrap_err();
    let all = mistakes.join("\n");
    for (setting, from) in [
        ("colour: ", "colour in ringq.toml"),
        ("max_streams: ", "max_streams in ringq.toml"),
        ("log_format: ", "log_format in ringq.toml"),
        ("listen: ", "RINGQ_LISTEN"),
        ("environment: ", "RINGQ_NOPE"),
        ("threads: ", "--threads"),
        ("drain_delay: ", "--drain-delay"),
        ("shard: a: the url has no scheme", "--shard"),
        ("shard: the name \"B\"", "--shard"),
    ] {
        let from = format!("(from {from})");
        let found = mistakes.iter().any(|m| m.starts_with(setting) && m.ends_with(&from));
        assert!(found, "{setting} is not in\n{all}");
    }
    assert_eq!(mistakes.len(), 9, "{all}");
}

#[test]
fn foreign_variables_are_ignored() {
    let variables = [
        ("RINGQ_SERVER", "http://127.0.0.1:7700"),
        ("RINGQ_TOKEN", "t"),
        ("RINGQ_HEADER_TRACEPARENT", "00"),
        ("RINGQ_BATCH", "3"),
        ("RINGQ_TOPICS", "a,b"),
        ("RINGQ_SERVICE_HOST", "10.0.0.1"),
        ("RINGQ_SERVICE_PORT", "7700"),
        ("RINGQ_SERVICE_PORT_GRPC", "7700"),
        ("RINGQ_PORT", "tcp://10.0.0.1:7700"),
        ("RINGQ_PORT_7700_TCP", "tcp://10.0.0.1:7700"),
        ("RINGQ_PORT_7700_TCP_ADDR", "10.0.0.1"),
        ("RINGQ_LISTEN", ""),
        ("PATH", "/bin"),
    ];
    assert_eq!(settings("", &variables, &ConfigFlags::default()), Ok(defaults()));
}

#[test]
fn missing_file_error_names_the_flag_or_variable() {
    let named = ConfigFlags { config: Some("/no/such/file".to_owned()), ..ConfigFlags::default() };
    let mut mistakes = Vec::new();
    read_file(&ConfigLayer::flags(&named), &ConfigLayer::default(), &mut mistakes);
    let want = "config: cannot read \"/no/such/file\": no such file or directory (from --config)";
    assert_eq!(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(), [want]);
}

#[test]
fn what_is_shown_reads_back() {
    let all = flags(&[
        ("listen", "[::1]:0"),
        ("data_dir", "a \"quoted\" \\ dir"),
        ("ready_file", "/tmp/ready"),
        ("stream_max_age", "0s"),
        ("drain_delay", "1500ms"),
        ("log_format", "json"),
        ("threads", "7"),
    ]);
    for flags in [ConfigFlags::default(), all] {
        let config = settings("", &[], &flags).unwrap();
        assert_eq!(Config::from_toml(&config.to_toml()), Ok(config));
    }
}

/// Returns the mistakes of a file with these shards.
fn errors_of(shards: &[&str]) -> Vec<String> {
    let tables: Vec<_> = shards.iter().map(|lines| format!("[[shard]]\n{lines}\n")).collect();
    settings(&tables.concat(), &[], &ConfigFlags::default()).err().unwrap_or_default()
}

#[test]
fn shards_have_weights_and_states() {
    let file = "[[shard]]\nname = 'a'\nurl = 'sqlite:a.db'\nweight = 100\nstate = 'draining'\n\
                [[shard]]\nname = 'b'\nurl = 'sqlite::memory:'";
    let config = settings(file, &[], &ConfigFlags::default()).unwrap();
    let shards: Vec<_> =
        config.shards.iter().map(|s| (s.name.as_str(), s.weight, s.state)).collect();
    assert_eq!(shards, [("a", 100, ShardState::Draining), ("b", 1, ShardState::Active)]);
    assert_eq!(Config::from_toml(&config.to_toml()), Ok(config));
}

#[test]
fn shards_that_cannot_be_together_are_refused_all_at_once() {
    let (a, b) = ("name = 'a'\nurl = 'sqlite:a.db'", "name = 'b'\nurl = 'sqlite:./b.db'");
    assert_eq!(errors_of(&[a, b]), [""; 0]);
    let found = errors_of(&[
        a,
        "name = 'a'\nurl = 'sqlite:c.db'",
        "name = 'c'\nurl = 'sqlite:./a.db'\nweight = 101",
        "name = 'd'\nurl = 'sqlite:d.db'\nweight = 0\nstate = 'gone'",
        "name = 'm'\nurl = 'sqlite::memory:'",
        "name = 'n'\nurl = 'sqlite::memory:'",
    ]);
    let want = [
        "shard: a is given twice; a name belongs to one shard for ever (from shard[1] in ringq.toml)",
        "shard: c: the weight \"101\" is not a whole number from 1 to 100 (from shard[2] in ringq.toml)",
        "shard: c has the same place as a; each shard needs its own place (from shard[2] in ringq.toml)",
        "shard: d: the weight \"0\" is not a whole number from 1 to 100 (from shard[3] in ringq.toml)",
        "shard: d: the state \"gone\" is neither active nor draining (from shard[3] in ringq.toml)",
    ];
    assert_eq!(found, want);
    let draining = [a, b].map(|lines| format!("{lines}\nstate = 'draining'"));
    let found = errors_of(&draining.each_ref().map(String::as_str));
    let want = "shard: no shard is active, so no job can be enqueued; set the state of one to active \
                (from shard[0] in ringq.toml)";
    assert_eq!(found, [want]);
}

#[test]
fn certificates_are_those_of_every_encrypted_shard() {
    let file = "redis_ca = 'ca.pem'\nredis_cert = 'c.pem'\nredis_key = 'c.key'";
    let shards = ["a=rediss://h", "b=redis://h:1"].map(str::to_owned).to_vec();
    let config = settings(file, &[], &ConfigFlags { shards, ..ConfigFlags::default() }).unwrap();
    let tls =
        RedisTlsFiles { ca: Some("ca.pem".into()), client: Some(("c.pem".into(), "c.key".into())) };
    assert_eq!(config.redis_tls, tls);
    let secure = ShardConfig::try_new("a", "rediss://h").unwrap();
    assert_eq!(config.shards[0], secure.clone().with_tls(&tls));
    assert_ne!(config.shards[0], secure);
    assert_eq!(config.shards[1], ShardConfig::try_new("b", "redis://h:1").unwrap());
    let again = Config::from_toml(&config.to_toml()).unwrap();
    assert_eq!((again.redis_tls, again.shards), (config.redis_tls, config.shards));
}

#[test]
fn certificates_that_nothing_uses_are_a_mistake() {
    let plain = |file: &str| {
        let shards = vec!["a=redis://h".to_owned()];
        settings(file, &[], &ConfigFlags { shards, ..ConfigFlags::default() }).unwrap_err()
    };
    let mistakes = plain("redis_ca = 'ca.pem'");
    assert!(mistakes[0].contains("redis_ca: is used by no shard; write rediss://"), "{mistakes:?}");
    for shards in [vec![], vec!["a=sqlite::memory:".to_owned()]] {
        let flags = ConfigFlags { shards, ..ConfigFlags::default() };
        let mistakes = settings("redis_ca = 'ca.pem'", &[], &flags).unwrap_err();
        assert!(mistakes[0].contains("redis_ca: is used by no shard"), "{mistakes:?}");
    }
    // A shard that could not be read may use it.
    let flags =
        ConfigFlags { shards: vec!["a=rediss://h#insecure".to_owned()], ..ConfigFlags::default() };
    let mistakes = settings("redis_ca = 'ca.pem'", &[], &flags).unwrap_err();
    assert!(mistakes.len() == 1 && mistakes[0].starts_with("shard: "), "{mistakes:?}");
    let mistakes = plain("redis_key = 'c.key'");
    assert!(mistakes[0].contains("without redis_cert"), "{mistakes:?}");
}

#[test]
fn files_of_tls_come_together_and_survive_the_output() {
    let server = "tls_cert = 'tls.crt'\ntls_key = 'tls.key'";
    let files = |more: &str| {
        let file = format!("{server}\n{more}");
        let config = settings(&file, &[], &ConfigFlags::default()).unwrap();
        assert_eq!(Config::from_toml(&config.to_toml()).unwrap().tls, config.tls);
        config.tls.unwrap()
    };
    let plain = files("");
    assert_eq!(plain, TlsFiles { cert: "tls.crt".into(), key: "tls.key".into(), client_ca: None });
    let ca = |auth| Some(ClientCa { file: "ca.crt".into(), auth });
    assert_eq!(files("tls_client_ca = 'ca.crt'").client_ca, ca(ClientAuth::Required));
    let optional = "tls_client_ca = 'ca.crt'\ntls_client_auth = 'optional'";
    assert_eq!(files(optional).client_ca, ca(ClientAuth::Optional));
    for (file, mistake) in [
        ("tls_cert = 'a'", "tls_cert: is of no use without tls_key; give both or none"),
        ("tls_key = 'a'", "tls_key: is of no use without tls_cert; give both or none"),
        ("tls_client_ca = 'a'", "tls_client_ca: is of no use without tls_cert"),
        (&format!("{server}\ntls_client_auth = 'optional'"), "without tls_client_ca"),
        ("tls_client_auth = 'maybe'", "\"maybe\" is neither required nor optional"),
    ] {
        let mistakes = settings(file, &[], &ConfigFlags::default()).unwrap_err();
        assert!(mistakes.iter().any(|found| found.contains(mistake)), "{file}: {mistakes:?}");
    }
}

#[test]
fn a_password_is_not_shown_and_that_is() {
    let shown = |url: &str| {
        let file = format!("[[shard]]\nname = 'a'\nurl = '{url}'");
        settings(&file, &[], &ConfigFlags::default()).unwrap().to_toml()
    };
    for url in ["redis://:secret@h", "redis+sentinel://h/main?sentinel_password=secret"] {
        let toml = shown(url);
        assert!(!toml.contains("secret") && toml.contains("not shown: add it"), "{toml}");
    }
    assert!(!shown("redis://h").contains("not shown"));
}
