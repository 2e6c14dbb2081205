//! Golden encodings: the bytes of each message on the wire. A changed field number or type fails here, before a
//! kubelet sees it.

use prost::Message;
use std::collections::BTreeMap;
use std::fmt::Debug;
use tonic::server::NamedService;
use vgpu_proto::{dra, health, registration};

/// `message` has exactly these bytes, and they read back as `message`.
fn golden<M: Message + Default + PartialEq + Debug>(message: &M, bytes: &[u8]) {
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
    assert_eq!(&M::decode(bytes).expect("decodes"), message);
}

macro_rules! dra_messages {
    ($test:ident, $version:ident, $device:expr, $device_bytes:expr) => {
        #[test]
        fn $test() {
            use dra::$version::*;
            let claim = || Claim {
                namespace: "n".into(),
                uid: "u".into(),
                name: "c".into(),
            };
            let claim_bytes = b"\x0a\x01n\x12\x01u\x1a\x01c";
            golden(&claim(), claim_bytes);
            let request = [b"\x0a\x09".as_slice(), claim_bytes].concat();
            golden(
                &NodePrepareResourcesRequest {
                    claims: vec![claim()],
                },
                &request,
            );
            golden(
                &NodeUnprepareResourcesRequest {
                    claims: vec![claim()],
                },
                &request,
            );

            let device: Device = $device;
            let device_bytes: &[u8] = $device_bytes;
            golden(&device, device_bytes);
            let answer = NodePrepareResourceResponse {
                devices: vec![device],
                error: "e".into(),
            };
            let answer_bytes = [&[0x0a, device_bytes.len() as u8], device_bytes, b"\x12\x01e"].concat();
            golden(&answer, &answer_bytes);
            let entry = [
                &[0x0a, 1, b'u', 0x12, answer_bytes.len() as u8],
                answer_bytes.as_slice(),
            ]
            .concat();
            golden(
                &NodePrepareResourcesResponse {
                    claims: BTreeMap::from([("u".to_owned(), answer)]),
                },
                &[&[0x0a, entry.len() as u8], entry.as_slice()].concat(),
            );

            let gone = NodeUnprepareResourceResponse { error: "e".into() };
            golden(&gone, b"\x0a\x01e");
            golden(
                &NodeUnprepareResourcesResponse {
                    claims: BTreeMap::from([("u".to_owned(), gone)]),
                },
                b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01e",
            );
        }
    };
}

dra_messages!(
    dra_v1,
    v1,
    Device {
        request_names: vec!["r".into()],
        pool_name: "p".into(),
        device_name: "d".into(),
        cdi_device_ids: vec!["k=i".into()],
        share_id: Some("s".into()),
    },
    b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x03k=i\x2a\x01s"
);

dra_messages!(
    dra_v1beta1,
    v1beta1,
    Device {
        request_names: vec!["r".into()],
        pool_name: "p".into(),
        device_name: "d".into(),
        cdi_device_ids: vec!["k=i".into()],
    },
    b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x03k=i"
);

#[test]
fn an_empty_share_id_differs_from_none() {
    let with = |share_id| dra::v1::Device {
        share_id,
        ..Default::default()
    };
    golden(&with(None), b"");
    golden(&with(Some(String::new())), b"\x2a\x00");
}

macro_rules! health_messages {
    ($test:ident, $version:ident) => {
        #[test]
        fn $test() {
            use health::$version::*;
            golden(&NodeWatchResourcesRequest {}, b"");
            let device = DeviceIdentifier {
                pool_name: "p".into(),
                device_name: "d".into(),
            };
            golden(&device, b"\x0a\x01p\x12\x01d");
            let report = DeviceHealth {
                device: Some(device),
                health: HealthStatus::Unhealthy.into(),
                last_updated_time: 300,
                health_check_timeout_seconds: 60,
                message: "m".into(),
            };
            let bytes = b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\xac\x02\x20\x3c\x2a\x01m";
            golden(&report, bytes);
            golden(
                &NodeWatchResourcesResponse {
                    devices: vec![report],
                },
                &[&[0x0a, bytes.len() as u8], bytes.as_slice()].concat(),
            );
            assert_eq!(
                [
                    HealthStatus::Unknown,
                    HealthStatus::Healthy,
                    HealthStatus::Unhealthy
                ]
                .map(i32::from),
                [0, 1, 2]
            );
        }
    };
}

health_messages!(health_v1, v1);
health_messages!(health_v1alpha1, v1alpha1);

#[test]
fn registration_v1() {
    use registration::*;
    golden(&InfoRequest {}, b"");
    golden(
        &PluginInfo {
            r#type: "DRAPlugin".into(),
            name: "n".into(),
            endpoint: "e".into(),
            supported_versions: vec!["v1.DRAPlugin".into(), "x".into()],
        },
        b"\x0a\x09DRAPlugin\x12\x01n\x1a\x01e\x22\x0cv1.DRAPlugin\x22\x01x",
    );
    golden(
        &RegistrationStatus {
            plugin_registered: true,
            error: "e".into(),
        },
        b"\x08\x01\x12\x01e",
    );
    golden(&RegistrationStatusResponse {}, b"");
}

/// Kubelet dials these paths.
#[test]
fn services_have_the_long_names() {
    fn name<S: NamedService>() -> &'static str {
        S::NAME
    }
    assert_eq!(
        name::<dra::v1::dra_plugin_server::DraPluginServer<()>>(),
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    );
    assert_eq!(
        name::<dra::v1beta1::dra_plugin_server::DraPluginServer<()>>(),
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
    );
    assert_eq!(
        name::<health::v1::dra_resource_health_server::DraResourceHealthServer<()>>(),
        "v1.DRAResourceHealth"
    );
    assert_eq!(
        name::<health::v1alpha1::dra_resource_health_server::DraResourceHealthServer<()>>(),
        "v1alpha1.DRAResourceHealth"
    );
    assert_eq!(
        name::<registration::registration_server::RegistrationServer<()>>(),
        "pluginregistration.Registration"
    );
}

#[test]
fn pod_resources_are_read_and_what_is_not_named_is_skipped() {
    use vgpu_proto::pod_resources::*;
    let claim = DynamicResource {
        claim_name: "c".into(),
        claim_namespace: "n".into(),
        claim_resources: vec![ClaimResource {
            driver_name: "d".into(),
            pool_name: "p".into(),
            device_name: "g".into(),
            share_id: Some("s".into()),
        }],
    };
    let claim_bytes = b"\x12\x01c\x1a\x01n\x22\x0c\x12\x01d\x1a\x01p\x22\x01g\x2a\x01s";
    golden(&claim, claim_bytes);
    let container = ContainerResources {
        name: "m".into(),
        dynamic_resources: vec![claim],
    };
    let container_bytes = [b"\x0a\x01m\x2a\x14".as_slice(), claim_bytes].concat();
    golden(&container, &container_bytes);
    // With cpu_ids, which are field 3 and packed.
    let more = [b"\x0a\x01m\x1a\x02\x01\x02\x2a\x14".as_slice(), claim_bytes].concat();
    assert_eq!(ContainerResources::decode(more.as_slice()).expect("decodes"), container);
    let pod = PodResources {
        name: "a".into(),
        namespace: "n".into(),
        containers: vec![container],
    };
    let pod_bytes = [b"\x0a\x01a\x12\x01n\x1a\x19".as_slice(), container_bytes.as_slice()].concat();
    golden(&pod, &pod_bytes);
    golden(&ListPodResourcesRequest {}, b"");
    golden(
        &ListPodResourcesResponse {
            pod_resources: vec![pod],
        },
        &[b"\x0a\x21".as_slice(), pod_bytes.as_slice()].concat(),
    );
}
