//! The writes of VgpuUsages as requests, and what each answer means.

use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use vgpu_api::usage::{USAGE_NAME, VgpuUsage, VgpuUsageSpec, VgpuUsageStatus};

use super::plan::{Outcome, Write};
use super::sum::digest;
use crate::decode::{Object, Parts};
use crate::leader::{Failure, MANAGER, timely};

/// Objects per page of a list: each may have 200 claims.
const PAGE: u32 = 20;

/// Performs a write. It never fails: a write that may not have landed is decided on again.
pub(super) async fn send(client: &Client, write: &Write) -> Outcome {
    let sent = async {
        match write {
            Write::Set { namespace, status } => set(client, namespace, status).await,
            Write::Delete { namespace } => delete(client, namespace).await,
            Write::List => list(client).await,
        }
    };
    sent.await.unwrap_or_else(|error| {
        // `of` logs every failure except a missing namespace or kind.
        let failure = Failure::of(&error, &task(write));
        tracing::debug!(task = ?task(write), ?failure, "a VgpuUsage is not written");
        Outcome::Failed
    })
}

/// For metrics and the log.
pub(super) const fn intent(write: &Write) -> &'static str {
    match write {
        Write::Set { .. } => "set",
        Write::Delete { .. } => "delete",
        Write::List => "list",
    }
}

/// The kind of a write and its namespace.
fn task(write: &Write) -> (&str, Option<&str>) {
    (intent(write), write.namespace())
}

/// Creates or replaces it in one request.
async fn set(client: &Client, namespace: &str, status: &VgpuUsageStatus) -> kube::Result<Outcome> {
    let api: Api<VgpuUsage> = Api::namespaced(client.clone(), namespace);
    let usage = VgpuUsage {
        metadata: ObjectMeta {
            name: Some(USAGE_NAME.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        spec: VgpuUsageSpec {},
        status: Some(status.clone()),
    };
    let parameters = PatchParams::apply(MANAGER).force();
    timely(api.patch_metadata(USAGE_NAME, &parameters, &Patch::Apply(&usage))).await?;
    Ok(Outcome::Done)
}

async fn delete(client: &Client, namespace: &str) -> kube::Result<Outcome> {
    let api: Api<VgpuUsage> = Api::namespaced(client.clone(), namespace);
    match timely(api.delete(USAGE_NAME, &DeleteParams::default())).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Outcome::Done),
        answer => answer.map(|_| Outcome::Done),
    }
}

/// Lists all objects. An object that cannot be read gets a digest that no status has, so that it is written again.
async fn list(client: &Client) -> kube::Result<Outcome> {
    let api: Api<Object<VgpuUsage, Parts>> = Api::all(client.clone());
    let mut parameters = ListParams::default().limit(PAGE);
    let mut listed = Vec::new();
    loop {
        let page = timely(api.list(&parameters)).await?;
        for object in page.items.iter().filter(|object| object.name_any() == USAGE_NAME) {
            let status = object
                .decode::<VgpuUsage>("it is written again")
                .and_then(|usage| usage.status);
            let digest = status.as_ref().map(digest).unwrap_or_default();
            listed.push((object.namespace().unwrap_or_default(), digest));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(Outcome::Listed(listed)),
        }
    }
}
