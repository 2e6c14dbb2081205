//! Calls of the plugin's DRA service with one claim each, sent at the same time as the kubelet sends them, and how
//! durations are printed: for the programs that measure the plugin.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use vgpu_proto::dra::v1::dra_plugin_client::DraPluginClient;
use vgpu_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};

pub(crate) type Plugin = DraPluginClient<Channel>;

/// Returns the time until the last answer.
pub(crate) async fn prepare_each(plugin: &Plugin, claims: &[Claim]) -> Result<Duration> {
    each(claims, async |claims| {
        let request = NodePrepareResourcesRequest { claims };
        let claims = plugin
            .clone()
            .node_prepare_resources(request)
            .await?
            .into_inner()
            .claims;
        Ok(claims.into_iter().map(|(uid, claim)| (uid, claim.error)).collect())
    })
    .await
}

/// Returns the time until the last answer.
pub(crate) async fn unprepare_each(plugin: &Plugin, claims: &[Claim]) -> Result<Duration> {
    each(claims, async |claims| {
        let request = NodeUnprepareResourcesRequest { claims };
        let claims = plugin
            .clone()
            .node_unprepare_resources(request)
            .await?
            .into_inner()
            .claims;
        Ok(claims.into_iter().map(|(uid, claim)| (uid, claim.error)).collect())
    })
    .await
}

/// `call` returns UIDs and errors.
async fn each(claims: &[Claim], call: impl AsyncFn(Vec<Claim>) -> Result<Vec<(String, String)>>) -> Result<Duration> {
    let start = Instant::now();
    let answers = try_join_all(claims.iter().map(|claim| call(vec![claim.clone()]))).await?;
    let took = start.elapsed();
    for (uid, error) in answers.into_iter().flatten() {
        ensure!(error.is_empty(), "claim {uid}: {error}");
    }
    Ok(took)
}

pub(crate) fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    for (quantile, at) in [("p50", times.len() / 2), ("p99", (times.len() * 99).div_ceil(100) - 1)] {
        println!("{what}_{quantile} us {}", times[at].as_micros());
    }
}
