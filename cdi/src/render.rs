//! Renders a spec file. Accepts only a valid spec.

use serde::Serialize;

use crate::{
    spec::{Spec, VERSION},
    validate,
};

impl Spec {
    /// Renders the file's content. An invalid spec is an error.
    pub fn render(&self) -> Result<Vec<u8>, validate::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct File<'s> {
            cdi_version: &'static str,
            #[serde(flatten)]
            spec: &'s Spec,
        }
        self.validate()?;
        let file = File {
            cdi_version: VERSION,
            spec: self,
        };
        let mut json = serde_json::to_vec_pretty(&file).expect("strings, numbers and string keys always serialise");
        json.push(b'\n');
        Ok(json)
    }

    /// Checks everything that a runtime would refuse, or would silently treat in another way.
    pub fn validate(&self) -> Result<(), validate::Error> {
        validate::spec(self)
    }
}
