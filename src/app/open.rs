//! Opens the shards: their directories first, then all stores at once.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures::future::try_join_all;

use crate::clock::Clock;
use crate::config::{ShardConfig, ShardUrl};
use crate::domain::ShardName;
use crate::shards::ShardMember;
use crate::store::Store;
use crate::store::redis::{self, RedisStore};
use crate::store::sqlite::{self, Database, SqliteStore};

use super::Error;

/// Creates the directories of all shards that are files.
pub(super) async fn directories(shards: &[ShardConfig]) -> Result<(), Error> {
    for shard in shards {
        if let ShardUrl::SqliteFile(file) = &shard.url {
            prepare_directory(file.parent().unwrap_or(Path::new(""))).await?;
        }
    }
    Ok(())
}

/// Creates the directory of a shard and checks that files can be created in it.
async fn prepare_directory(path: &Path) -> Result<(), Error> {
    // A file without a directory is in the current one.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let probe = path.join(".ringq-write-test");
    let prepare = async {
        tokio::fs::create_dir_all(path).await?;
        tokio::fs::write(&probe, b"").await?;
        tokio::fs::remove_file(&probe).await
    };
    prepare.await.map_err(|error| {
        // A file is in the place of the directory; "file exists" would not explain the problem.
        let is_file = error.kind() == io::ErrorKind::AlreadyExists;
        let error = if is_file { io::ErrorKind::NotADirectory.into() } else { error };
        Error::DataDir { path: path.to_owned(), error }
    })
}

/// Opens the stores of all shards; `owner`: the nonce of this replica.
pub(super) async fn stores(
    shards: &[ShardConfig],
    clock: &Clock,
    owner: u32,
) -> Result<Vec<ShardMember>, Error> {
    try_join_all(shards.iter().map(|shard| open(shard, clock, owner))).await
}

async fn open(shard: &ShardConfig, clock: &Clock, owner: u32) -> Result<ShardMember, Error> {
    let ShardConfig { name, url, weight, state } = shard;
    let opened = open_store(name.clone(), url, clock.clone(), owner).await;
    let store = opened.map_err(|error| {
        let (name, url) = (name.clone(), url.clone());
        Error::Shard { name, url, error }
    })?;
    // A shard that is not reached yet is logged by its health check.
    if !store.status().borrow().is_down() {
        tracing::info!(shard = %name, %url, weight, "shard opened");
    }
    Ok(ShardMember { store, weight: *weight, state: *state })
}

async fn open_store(
    name: ShardName,
    url: &ShardUrl,
    clock: Clock,
    owner: u32,
) -> Result<Arc<dyn Store>, Box<dyn std::error::Error + Send + Sync>> {
    let database = match url {
        ShardUrl::SqliteFile(path) => Database::File(path.clone()),
        ShardUrl::SqliteMemory => Database::Memory,
        ShardUrl::Redis(address) => {
            let address = address.clone();
            let config = redis::Config { name, address, clock, owner };
            return Ok(Arc::new(RedisStore::open(config).await?));
        }
    };
    Ok(Arc::new(SqliteStore::open(sqlite::Config { name, database, clock })?))
}
