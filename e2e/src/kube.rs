//! kubectl and helm on a cluster.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::api::{self, Created, Request};
use crate::cluster::Cluster;
use crate::shell::{self, Said};
use crate::wait::wait;

/// A namespace of a cluster, for kubectl.
#[derive(Debug, Clone, Copy)]
pub struct Kube<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
}

impl<'a> Kube<'a> {
    #[must_use]
    pub fn new(cluster: &'a Cluster, namespace: &'a str) -> Self {
        Self { cluster, namespace }
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace
    }

    /// kubectl with these arguments.
    pub fn command<I, S>(&self, arguments: I) -> Result<Command>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.client("kubectl", arguments)
    }

    /// Returns kubectl's standard output; an error if it fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        shell::output(&mut self.command(arguments)?)
    }

    /// Runs kubectl and returns its status and output, even if it failed.
    pub fn try_run(&self, arguments: &[&str]) -> Result<Said> {
        shell::capture(&mut self.command(arguments)?)
    }

    /// Returns objects as JSON: from the API server itself if possible, else from kubectl.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        if let Some(asked) = Request::by_words(self.namespace, arguments) {
            return self.cluster.api()?.json(&asked);
        }
        let all: Vec<&str> = ["get", "-o", "json"]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        serde_json::from_str(&self.run(&all)?).context("kubectl gave no JSON")
    }

    /// The API server's answer to this path.
    pub fn raw(&self, path: &str) -> Result<String> {
        self.cluster.api()?.text(&Request::raw(path))
    }

    /// The log of a pod's container, which must be named if there are several.
    pub fn logs(&self, pod: &str, container: Option<&str>) -> Result<String> {
        let container = container.map(|name| format!("?container={name}")).unwrap_or_default();
        self.raw(&format!(
            "/api/v1/namespaces/{}/pods/{pod}/log{container}",
            self.namespace
        ))
    }

    /// Waits until pods can be created in the namespace.
    pub fn wait_service_account(&self, limit: Duration) -> Result<()> {
        wait(limit, "the namespace's service account", || {
            self.get(&["serviceaccount", "default"]).map(Some)
        })
        .map(drop)
    }

    /// Runs kubectl with `text` on its standard input and returns its output.
    pub fn try_run_with_input(&self, arguments: &[&str], input: &str) -> Result<Said> {
        let mut command = self.command(arguments)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run kubectl")?;
        let mut pipe = child.stdin.take().context("kubectl has no standard input")?;
        pipe.write_all(input.as_bytes())
            .context("kubectl ended before it read its input")?;
        drop(pipe);
        let output = child.wait_with_output().context("cannot wait for kubectl")?;
        Ok(Said {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Applies manifests with kubectl. Returns its status and output.
    pub fn try_apply(&self, manifests: &str) -> Result<Said> {
        self.try_run_with_input(&["apply", "-f", "-"], manifests)
    }

    /// Applies manifests. New objects are created without kubectl ([`crate::api`]).
    pub fn apply(&self, manifests: &str) -> Result<()> {
        if let Some(objects) = api::objects(manifests) {
            let api = self.cluster.api()?;
            let mut all_new = true;
            for object in &objects {
                all_new = api.create(self.namespace, object)? == Created::New;
                if !all_new {
                    break;
                }
            }
            if all_new {
                return Ok(());
            }
        }
        self.apply_as_user(manifests)
    }

    /// Applies manifests with kubectl, which records in the objects what it applied.
    pub fn apply_as_user(&self, manifests: &str) -> Result<()> {
        let said = self.try_apply(manifests)?;
        ensure!(said.status.success(), "kubectl apply: {}", said.stderr.trim());
        Ok(())
    }

    /// Creates the namespace.
    pub fn create_namespace(&self) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        match self.cluster.api()?.create("", &namespace)? {
            Created::New => Ok(()),
            _ => Err(anyhow!("namespace {} exists", self.namespace)),
        }
    }

    /// Deletes the namespace without waiting for its end.
    pub fn delete_namespace(&self) -> Result<()> {
        let namespace = Request::raw(&format!("/api/v1/namespaces/{}", self.namespace));
        self.cluster.api()?.delete(&namespace)
    }

    /// Runs a command in a pod's container. Returns its standard output; an error if it fails.
    pub fn exec(&self, pod: &str, command: &[&str]) -> Result<String> {
        let all: Vec<&str> = ["exec", pod, "--"].into_iter().chain(command.iter().copied()).collect();
        self.run(&all)
    }

    /// The pods' names and phases.
    pub fn phases(&self) -> Result<Vec<(String, String)>> {
        let pods = self.get(&["pods"])?;
        let items = pods["items"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(items
            .iter()
            .map(|pod| (text(&pod["metadata"]["name"]), text(&pod["status"]["phase"])))
            .collect())
    }

    /// Messages of an object's events with this reason (any reason if it is empty).
    pub fn events(&self, object: &str, reason: &str) -> Result<Vec<String>> {
        let mut selector = format!("involvedObject.name={object}");
        if !reason.is_empty() {
            selector.push_str(&format!(",reason={reason}"));
        }
        let events = self.get(&["events", "--field-selector", &selector])?;
        let items = events["items"].as_array().cloned().unwrap_or_default();
        Ok(items
            .iter()
            .map(|event| event["message"].as_str().unwrap_or_default().to_owned())
            .collect())
    }

    /// Waits until the pod is running and its containers are ready.
    pub fn wait_running(&self, pod: &str, limit: Duration) -> Result<()> {
        wait(limit, &format!("pod {}/{pod} to run", self.namespace), || {
            let found = self.get(&["pod", pod])?;
            let statuses = found["status"]["containerStatuses"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let ready = !statuses.is_empty() && statuses.iter().all(|status| status["ready"] == true);
            Ok((found["status"]["phase"] == "Running" && ready).then_some(()))
        })
        .map_err(|error| anyhow!("{error:#}\n{}", self.describe(pod)))
    }

    /// Details that show people why a pod failed.
    #[must_use]
    pub fn describe(&self, pod: &str) -> String {
        self.run(&["describe", "pod", pod])
            .unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Everything in the namespace that may explain why a test failed.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut text = String::new();
        for arguments in [
            ["get", "pods,resourceclaims", "-o", "wide"].as_slice(),
            &["get", "events", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "--namespace=dra-driver-vgpu",
                "--selector=app.kubernetes.io/name=dra-driver-vgpu",
                "--prefix",
                "--tail=40",
            ],
        ] {
            let said = self.run(arguments).unwrap_or_else(|error| format!("{error:#}"));
            text.push_str(&format!("$ kubectl {}\n{said}\n", arguments.join(" ")));
        }
        text
    }

    /// helm in this namespace.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        shell::output(&mut self.helm_command(arguments)?)
    }

    /// helm in this namespace, to be run by the caller.
    pub fn helm_command(&self, arguments: &[&str]) -> Result<Command> {
        self.client("helm", arguments)
    }

    fn client<I, S>(&self, program: &str, arguments: I) -> Result<Command>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = self.cluster.state().client(self.cluster.toolchain().program(program)?);
        // Most of these processes end before garbage collection is worthwhile.
        command
            .env("GOGC", "400")
            .args(["--namespace", self.namespace])
            .args(arguments);
        Ok(command)
    }
}
