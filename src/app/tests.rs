//! Tests of the start and the shutdown of a server.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;

/// Returns settings of a server that uses nothing but what `more` sets.
fn config(more: &str) -> Config {
    let text = format!(
        "listen = '127.0.0.1:0'\nhttp_listen = '127.0.0.1:0'\n{more}\n\
         [[shard]]\nname = 's0'\nurl = 'sqlite::memory:'"
    );
    Config::from_toml(&text).unwrap()
}

/// Returns the error of a server that cannot start.
async fn refused(config: Config) -> String {
    match App::build(config, Telemetry::default()).await {
        Ok(_) => panic!("the server starts"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn port_in_use_error_names_the_fix() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let mut config = config("");
    config.http_listen = address;
    let error = refused(config).await;
    let want = format!(
        "cannot listen on {address}: address already in use; \
         free it or choose another with --http-listen"
    );
    assert_eq!(error, want);
}

#[tokio::test]
async fn directory_error_names_the_fix() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let directory = file.path().join("data");
    let text = format!("data_dir = {directory:?}");
    let error = refused(Config::from_toml(&text).unwrap()).await;
    assert!(error.starts_with(&format!("cannot write to {}: ", directory.display())), "{error}");
    assert!(error.contains("--data-dir"), "{error}");
}

#[tokio::test]
async fn the_ready_file_lives_as_long_as_the_server_serves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ready.json");
    let app =
        App::build(config(&format!("ready_file = {path:?}")), Telemetry::default()).await.unwrap();
    let want = serde_json::json!({
        "grpc": app.grpc_address().to_string(), "http": app.http_address().to_string(),
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(app.run(async { drop(stopped.await) }));
    while !path.exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), want);
    drop(stop);
    running.await.unwrap().unwrap();
    assert!(!path.exists());
}
