//! Modes of the files that a server makes: what is stored is for its user alone, whatever the umask is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::harness::{Setup, job};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn what_a_server_stores_is_for_its_user_alone() {
    let setup = Setup::new().ring(Vec::new());
    let (data, audit) = (setup.dir().join("made/data"), setup.dir().join("audit"));
    fs::create_dir(&audit).unwrap();
    fs::set_permissions(&audit, fs::Permissions::from_mode(0o755)).unwrap();
    let setup =
        setup.config(&format!("data_dir = {data:?}\naudit_log = {audit:?}\naudit_calls = \"all\""));
    let server = setup.start().await;
    server.connect().await.enqueue(job("t").with_text("secret")).await;
    assert_eq!((mode(&data), mode(data.parent().unwrap())), (0o700, 0o700));
    assert_eq!(mode(&audit), 0o755, "a directory that exists keeps its mode");
    let made = [files(&data), files(&audit)].concat();
    let names: Vec<_> =
        made.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    for part in [".db", ".db-wal", ".db-shm", ".db.lock", ".db.reserve", ".jsonl"] {
        assert!(names.iter().any(|name| name.ends_with(part)), "{part}: {names:?}");
    }
    for path in &made {
        assert_eq!(mode(path), 0o600, "{}", path.display());
    }
}
