//! Webhook signatures of the Standard Webhooks specification (HMAC-SHA256 over id, timestamp and body), which existing
//! libraries can verify.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The sizes of a secret that the specification allows.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const SECRET_PREFIX: &str = "whsec_";
const SIGNATURE_PREFIX: &str = "v1,";

/// How far the timestamp of a message may differ from the receiver's clock, according to the specification.
pub const TOLERANCE_SECONDS: i64 = 5 * 60;

/// A secret that signs webhooks. Its `Debug` output does not contain the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// Why a text is not a secret. The message completes a sentence about an environment variable and does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("holds no secret; set it to whsec_ followed by 24 to 64 random bytes in base64")]
    None,
    #[error("holds a secret that is not whsec_ followed by base64")]
    NotBase64,
    #[error("holds a secret of {0} bytes; it must have 24 to 64")]
    Size(usize),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Parses `whsec_` followed by base64. The prefix is optional, as in other libraries.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(SECRET_PREFIX).unwrap_or(text);
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretError::NotBase64)?;
        if SECRET_BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(SecretError::Size(bytes.len())) }
    }

    /// Parses secrets that are separated by white space. All of them are valid at the same time, so that a secret can be
    /// replaced without interruption.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SecretError> {
        let secrets = text.split_ascii_whitespace().map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        if secrets.is_empty() { Err(SecretError::None) } else { Ok(secrets) }
    }

    /// The text form of a secret with these random bytes.
    pub fn text_of(random: &[u8; 32]) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(random))
    }

    /// The HMAC of a message. It is never `None`, because HMAC accepts keys of any length.
    fn mac(&self, id: &str, timestamp: i64, body: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        Some(mac)
    }
}

/// The value of the header `webhook-signature`: one signature per secret.
pub fn sign(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let macs = secrets.iter().filter_map(|secret| secret.mac(id, timestamp, body));
    let signed = macs.map(|mac| format!("{SIGNATURE_PREFIX}{}", STANDARD.encode(mac.finalize().into_bytes())));
    signed.collect::<Vec<_>>().join(" ")
}

/// Whether any of the signatures was made with any of the secrets. The caller checks that the timestamp is recent.
pub fn verify(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8], signatures: &str) -> bool {
    let offered = signatures.split_ascii_whitespace().filter_map(|part| part.strip_prefix(SIGNATURE_PREFIX));
    offered.filter_map(|encoded| STANDARD.decode(encoded).ok()).any(|signature| {
        secrets
            .iter()
            .filter_map(|secret| secret.mac(id, timestamp, body))
            .any(|mac| mac.verify_slice(&signature).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example from the specification.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn the_known_example_is_signed_and_verified() {
        let secret = [Secret::parse(SECRET).unwrap()];
        assert_eq!(sign(&secret, ID, TIMESTAMP, BODY), SIGNATURE);
        assert!(verify(&secret, ID, TIMESTAMP, BODY, SIGNATURE));
        for (id, timestamp, body, signature) in [
            ("msg", TIMESTAMP, BODY, SIGNATURE),
            (ID, TIMESTAMP + 1, BODY, SIGNATURE),
            (ID, TIMESTAMP, b"{}".as_slice(), SIGNATURE),
            (ID, TIMESTAMP, BODY, "v1,AAAA"),
            (ID, TIMESTAMP, BODY, &SIGNATURE[3..]),
            (ID, TIMESTAMP, BODY, ""),
        ] {
            assert!(!verify(&secret, id, timestamp, body, signature), "{signature}");
        }
    }

    #[test]
    fn every_secret_of_a_list_signs_and_any_one_verifies() {
        let old = Secret::parse(SECRET).unwrap();
        let new = Secret::parse(&Secret::text_of(&[7; 32])).unwrap();
        let both = Secret::parse_list(&format!("{}\n {SECRET} ", Secret::text_of(&[7; 32]))).unwrap();
        assert_eq!(both, [new.clone(), old.clone()]);
        let signed = sign(&both, ID, TIMESTAMP, BODY);
        assert_eq!(signed.split(' ').count(), 2);
        assert!(verify(&[old], ID, TIMESTAMP, BODY, &signed) && verify(&[new], ID, TIMESTAMP, BODY, &signed));
        assert!(!verify(&[Secret::parse(&Secret::text_of(&[8; 32])).unwrap()], ID, TIMESTAMP, BODY, &signed));
    }

    #[test]
    fn the_reference_library_verifies_what_is_signed_here() {
        let theirs = standardwebhooks::Webhook::new(SECRET).unwrap();
        for body in ["{}", "", "{\"a\":\"é\u{202e}\"}"] {
            let ours = sign(&[Secret::parse(SECRET).unwrap()], ID, TIMESTAMP, body.as_bytes());
            assert_eq!(ours, theirs.sign(ID, TIMESTAMP, body.as_bytes()).unwrap());
        }
    }

    #[test]
    fn invalid_secrets_are_rejected() {
        for (text, error) in [
            ("", SecretError::None),
            (" \n", SecretError::None),
            ("whsec_", SecretError::Size(0)),
            ("hunter2", SecretError::NotBase64),
            ("whsec_c2hvcnQ=", SecretError::Size(5)),
        ] {
            assert_eq!(Secret::parse_list(text), Err(error), "{text:?}");
        }
        assert!(Secret::parse(&SECRET[6..]).is_ok(), "the prefix may be left out");
        assert_eq!(format!("{:?}", Secret::parse(SECRET).unwrap()), "Secret(..)");
    }
}
