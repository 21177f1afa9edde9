use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use super::{Ran, finish, rows};
use crate::client::guarded::Guarded;
use crate::harness::{Certificates, Server, TlsProxy};

/// A user with a home of its own.
struct User(TempDir);

impl User {
    fn new() -> User {
        User(tempfile::tempdir().unwrap())
    }

    fn home(&self) -> &Path {
        self.0.path()
    }

    fn contexts(&self) -> PathBuf {
        self.home().join(".config/ringq/contexts.toml")
    }

    fn command(&self, args: &[&str]) -> Command {
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let mut command = super::command(nowhere, args);
        command.env_remove("RINGQ_SERVER").env("HOME", self.home()).current_dir(self.home());
        command
    }

    async fn ringq(&self, args: &[&str]) -> Ran {
        self.with(&[], args).await
    }

    async fn with(&self, variables: &[(&str, &str)], args: &[&str]) -> Ran {
        finish(self.command(args).envs(variables.iter().copied()).spawn().unwrap()).await
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.home().join(name), text).unwrap();
    }
}

#[tokio::test]
async fn a_context_stands_for_flags() {
    let Some(files) = Certificates::make() else { return };
    let guarded = Guarded::start("good").await;
    let certificate = (&*files.cert, &*files.key);
    let proxy = TlsProxy::start(guarded.address, certificate, Some(&files.ca)).await;
    let user = User::new();
    user.write("token", "good\n");
    for (name, path) in [("ca.pem", &files.ca), ("c.pem", &files.cert), ("k.pem", &files.key)] {
        std::fs::copy(path, user.home().join(name)).unwrap();
    }
    let url = proxy.url();
    let add = ["context", "add", "prod", "--server", &url, "--token-file", "token"];
    let tls = ["--ca", "ca.pem", "--cert", "c.pem", "--key", "k.pem"];
    let added = user.ringq(&[&add[..], &tls].concat()).await;
    assert!(added.stderr.contains("`ringq context use prod`"), "{}", added.stderr);
    added.ok();
    user.ringq(&["context", "add", "local", "--server", ":1"]).await.ok();
    let call = ["enqueue", "t", "x"];
    // Added is not used.
    user.ringq(&call).await.fails(4, &["no connection to http://127.0.0.1:7700"]);
    let used = user.ringq(&["context", "use", "prod"]).await.ok();
    assert_eq!(used, format!("prod in use: {url}\n"));
    // Paths lead to the same files from any directory.
    finish(user.command(&call).current_dir("/").spawn().unwrap()).await.ok();
    assert_eq!(guarded.seen(), [Some("Bearer good".to_owned())]);
    let list = user.ringq(&["context", "list"]).await.ok();
    let want = [
        vec!["NAME".to_owned(), "SERVER".to_owned(), "CREDENTIALS".to_owned(), "IN USE".to_owned()],
        vec!["local".to_owned(), "http://127.0.0.1:1".to_owned(), "none".to_owned()],
        vec![
            "prod".to_owned(),
            url.clone(),
            "token file, certificate".to_owned(),
            "yes".to_owned(),
        ],
    ];
    assert_eq!(rows(&list), want);
    let shown = user.ringq(&["context", "show", "-o", "json"]).await.json();
    assert_eq!((&shown["name"], &shown["in_use"]), (&"prod".into(), &true.into()));
    assert_eq!(shown["token_file"], user.home().join("token").to_str().unwrap());
    // Named for one command by a flag, or a variable.
    let other = ["no connection to http://127.0.0.1:1:"];
    user.ringq(&[&call[..], &["--context", "local"]].concat()).await.fails(4, &other);
    user.with(&[("RINGQ_CONTEXT", "local")], &call).await.fails(4, &other);
}

#[tokio::test]
async fn flags_win_over_variables_and_these_over_contexts() {
    let server = Server::start().await;
    let here = format!("http://{}", server.grpc);
    let user = User::new();
    user.ringq(&["context", "add", "here", "--server", &here]).await.ok();
    user.ringq(&["context", "add", "nowhere", "--server", ":1"]).await.ok();
    user.ringq(&["context", "use", "nowhere"]).await.ok();
    let variable = [("RINGQ_SERVER", &*here)];
    user.with(&variable, &["info"]).await.ok();
    user.with(&variable, &["info", "--server", ":1"]).await.fails(4, &["127.0.0.1:1:"]);
    // A context of a flag is one of flags.
    user.with(&variable, &["info", "--context", "nowhere"]).await.fails(4, &["127.0.0.1:1:"]);
    let both = [("RINGQ_CONTEXT", "nowhere"), ("RINGQ_SERVER", &*here)];
    user.with(&both, &["info"]).await.ok();
    user.with(&both, &["info", "--context", "here", "--server", ":1"]).await.fails(4, &[":1"]);
    // A note shows that `use` has no effect here.
    let ran = user.with(&both, &["context", "use", "here"]).await;
    let texts = ["RINGQ_CONTEXT is set and wins here: nowhere", "RINGQ_SERVER is set and wins"];
    assert!(texts.iter().all(|text| ran.stderr.contains(text)), "{}", ran.stderr);
    let file = user.home().join("elsewhere.toml");
    let elsewhere = [("RINGQ_CONTEXTS", file.to_str().unwrap())];
    user.with(&elsewhere, &["context", "add", "x", "--server", &here]).await.ok();
    user.with(&elsewhere, &["info", "--context", "x"]).await.ok();
    user.ringq(&["info", "--context", "x"]).await.fails(2, &["there is no context x"]);
}

/// A token belongs to its server.
#[tokio::test]
async fn the_token_of_a_context_is_not_sent_elsewhere() {
    let guarded = Guarded::start("planted").await;
    let here = format!("http://localhost:{}", guarded.address.port());
    let same_machine = format!("http://127.0.0.1:{}", guarded.address.port());
    let user = User::new();
    let add = ["context", "add", "prod", "--server", "https://queue.example.org:7700"];
    let with_token = [&add[..], &["--token", "planted"]].concat();
    user.ringq(&with_token).await.ok();
    user.ringq(&["context", "use", "prod"]).await.ok();
    let call = ["enqueue", "t", "x"];
    let hint =
        "the credentials of context prod go only to its own server, https://queue.example.org";
    let by_flag = user.ringq(&[&call[..], &["--server", &here]].concat()).await;
    by_flag.fails(1, &["the call has no token", hint]);
    let by_variable = user.with(&[("RINGQ_SERVER", &here)], &call).await;
    by_variable.fails(1, &["the call has no token", hint]);
    let both = [&call[..], &["--context", "prod", "--server", &here]].concat();
    user.ringq(&both).await.fails(1, &["the call has no token"]);
    assert!(guarded.seen().iter().all(Option::is_none), "the token went elsewhere");
    // Its own host gets it, by any port; another name of the host is another host.
    let local = ["context", "add", "local", "--server", "http://localhost:1", "--token", "planted"];
    user.ringq(&local).await.ok();
    let on_local = |url| [&call[..], &["--context", "local", "--server", url]].concat();
    user.ringq(&on_local(&here)).await.ok();
    assert_eq!(guarded.seen(), [Some("Bearer planted".to_owned())]);
    user.ringq(&on_local(&same_machine)).await.fails(1, &["the call has no token"]);
}

#[tokio::test]
async fn mistakes_with_contexts_change_nothing() {
    let user = User::new();
    user.ringq(&["context", "use", "prod"]).await.fails(2, &["no context prod", "none yet"]);
    user.ringq(&["context", "show"]).await.fails(2, &["no context is in use"]);
    assert_eq!(user.ringq(&["context", "list"]).await.ok(), "");
    assert_eq!(user.ringq(&["context", "list", "-o", "json"]).await.ok(), "[]\n");
    let add = ["context", "add", "prod", "--server", "http://a:1"];
    user.ringq(&add).await.ok();
    let before = std::fs::read_to_string(user.contexts()).unwrap();
    let changed = ["context", "add", "prod", "--server", "http://b:1"];
    user.ringq(&changed).await.fails(2, &["there is a context prod already", "--replace"]);
    for (args, texts) in [
        (&["use", "prdo"][..], &["there is no context prdo", "did you mean prod?"][..]),
        (&["use", "other"], &["there is no context other", "there are prod"]),
        (&["remove", "other"], &["there is no context other", "there are prod"]),
        (&["show", "other"], &["there is no context other"]),
        (&["add", "x"], &["--server"]),
        (&["add", "a b", "--server", ":1"], &["a context is named by"]),
        (&["add", "x", "--server", "ftp://a"], &["is not a server URL", "--server"]),
        (&["add", "x", "--server", ":1", "--token-file", "none"], &["cannot be read"]),
        (&["add", "x", "--server", "http://a", "--token", "t"], &["--allow-plaintext-token"]),
        (&["add", "x", "--server", "https://a", "--cert", "c"], &["--key"]),
    ] {
        user.ringq(&[&["context"], args].concat()).await.fails(2, texts);
    }
    assert_eq!(std::fs::read_to_string(user.contexts()).unwrap(), before);
    let unknown = user.with(&[("RINGQ_CONTEXT", "prdo")], &["info"]).await;
    unknown.fails(2, &["RINGQ_CONTEXT is \"prdo\"", "did you mean prod?"]);
    user.ringq(&["context", "use", "prod"]).await.ok();
    user.ringq(&["context", "remove", "prod"]).await.fails(2, &["prod is in use", "--force"]);
    let replaced = [&changed[..], &["--replace"]].concat();
    user.ringq(&replaced).await.ok();
    let shown = user.ringq(&["context", "show"]).await.ok();
    assert!(shown.contains("http://b:1"), "a replaced context stays in use: {shown}");
    let forced = user.ringq(&["context", "remove", "prod", "--force"]).await;
    assert!(forced.stderr.contains("no context is in use now"), "{}", forced.stderr);
    forced.ok();
    user.ringq(&["info"]).await.fails(4, &["http://127.0.0.1:7700"]);
    let nowhere = finish(user.command(&add).env_remove("HOME").spawn().unwrap()).await;
    nowhere.fails(2, &["HOME is not set", "RINGQ_CONTEXTS"]);
}

#[tokio::test]
async fn a_token_is_kept_private_and_never_shown() {
    let user = User::new();
    let add = ["context", "add", "prod", "--server", "https://a", "--token", "planted"];
    let mut seen = user.ringq(&add).await.ok();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&user.contexts()), 0o600);
    user.ringq(&["context", "use", "prod"]).await.ok();
    for args in [&["show"][..], &["show", "-o", "json"], &["list"], &["list", "-o", "json"]] {
        seen += &user.ringq(&[&["context"], args].concat()).await.ok();
    }
    assert!(seen.contains("hidden") && !seen.contains("planted"), "{seen}");
    let help = user.ringq(&["info", "--help"]).await.ok();
    assert!(!help.contains("planted"), "{help}");
    for (mode, part) in [(0o644, "has a token and can be read"), (0o620, "can be changed by other")]
    {
        set_permissions(user.contexts(), Permissions::from_mode(mode)).unwrap();
        for args in [&["info"][..], &["context", "list"], &["context", "use", "prod"]] {
            user.ringq(args).await.fails(2, &[part, "chmod 600 "]);
        }
    }
    user.write("broken.toml", "[context.a]\nserver = \"https://a\"\ntoken = planted\n");
    set_permissions(user.home().join("broken.toml"), Permissions::from_mode(0o600)).unwrap();
    let broken = user.with(&[("RINGQ_CONTEXTS", "broken.toml")], &["info"]).await;
    let broken = broken.fails(2, &["broken.toml is not TOML: line 3"]);
    assert!(!broken.stderr.contains("planted"), "{}", broken.stderr);
}

/// Each of many commands at once keeps what the others add.
#[tokio::test]
async fn commands_at_once_lose_nothing() {
    let user = User::new();
    let commands = (0..20).map(|n| {
        let name = format!("c{n}");
        let mut command = user.command(&["context", "add", &name, "--server", ":1"]);
        finish(command.spawn().unwrap())
    });
    for ran in futures::future::join_all(commands).await {
        ran.ok();
    }
    let list = user.ringq(&["context", "list", "-o", "json"]).await.json();
    assert_eq!(list.as_array().unwrap().len(), 20);
}
