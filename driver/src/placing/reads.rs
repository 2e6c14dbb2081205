//! Consistent reads for the planner: answered from the API server's store, not from a cache, and begun at a known time.
//!
//! They set no resourceVersion, so the API server answers with everything that was written before. The time is taken
//! before the request is sent, so a read may be newer than its time says, and never older. A list comes in pages of one
//! version; if that version is gone before the last page, the list fails.

use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, Client};
use vgpu_planner::model::{Claim, Version, VersionError};
use vgpu_planner::{self as planner, Last, Read, Seen};

use crate::decode;
use crate::leader::clock::Clock;

const PAGE: u32 = 500;
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("the list of resourceclaims: {0}")]
    Claims(#[source] kube::Error),
    #[error("resourceslice {name}: {source}")]
    Slice { name: String, source: kube::Error },
    #[error("resourceslice {0} cannot be read, not even its version")]
    Unreadable(String),
    #[error("{what}: no answer within {TIMEOUT:?}")]
    TooSlow { what: String },
    #[error("the list of resourceclaims: {0}")]
    Version(#[from] VersionError),
    #[error("the list of resourceclaims changed its version between two pages: {0} and {1}")]
    Moved(Version, Version),
}

/// Performs a read of the planner. Claims in `seen` are known already and only named, so they are not held in memory
/// twice.
pub(super) async fn read(
    client: &Client,
    clock: &Clock,
    read: &Read,
    seen: &Seen,
) -> Result<planner::Change, ReadError> {
    match read {
        Read::Claims => claims(client, clock, seen).await,
        Read::Slice(name) => slice(client, clock, name).await,
    }
}

async fn claims(client: &Client, clock: &Clock, seen: &Seen) -> Result<planner::Change, ReadError> {
    let api: Api<decode::Claim> = Api::all(client.clone());
    let read = Some(clock.now());
    let (mut claims, mut same): (Vec<Claim>, Vec<String>) = Default::default();
    let mut of_first: Option<Version> = None;
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = tokio::time::timeout(TIMEOUT, api.list(&parameters)).await;
        let page = page.map_err(|_| ReadError::TooSlow {
            what: "the list of resourceclaims".to_owned(),
        })?;
        let page = page.map_err(ReadError::Claims)?;
        let version: Version = page.metadata.resource_version.unwrap_or_default().parse()?;
        let first = *of_first.get_or_insert(version);
        if first != version {
            return Err(ReadError::Moved(first, version));
        }
        for claim in page.items.into_iter().filter_map(|claim| claim.body) {
            match seen.has(&claim) {
                true => same.push(claim.key()),
                false => claims.push(claim),
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => {
                return Ok(planner::Change::Claims {
                    claims,
                    same,
                    version,
                    read,
                });
            }
        }
    }
}

async fn slice(client: &Client, clock: &Clock, name: &str) -> Result<planner::Change, ReadError> {
    let api: Api<decode::Slice> = Api::all(client.clone());
    let begun = clock.now();
    let slice = tokio::time::timeout(TIMEOUT, api.get_opt(name)).await;
    let slice = slice.map_err(|_| ReadError::TooSlow {
        what: format!("resourceslice {name}"),
    })?;
    match slice {
        Ok(Some(slice)) => match slice.body {
            Some(slice) => Ok(planner::Change::Slice {
                slice,
                read: Some(begun),
            }),
            None => Err(ReadError::Unreadable(name.to_owned())),
        },
        Ok(None) => Ok(planner::Change::SliceGone {
            name: name.to_owned(),
            last: Last::Read(begun),
        }),
        Err(source) => Err(ReadError::Slice {
            name: name.to_owned(),
            source,
        }),
    }
}
