//! The reasons for which a sign-in is refused, each with its texts for the log and for the person.

use actix_web::http::StatusCode;

/// Why a sign-in is refused. It contains no secret, that is, no token and no code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No sign-in of this browser began with the `state` of the answer.
    StateMismatch,
    /// The sign-in began too long ago.
    TooSlow,
    /// The provider refused the sign-in, with this error code.
    Denied(String),
    /// The provider cannot be reached or fails, with a description.
    ProviderDown(String),
    /// The answer of the provider cannot be used, for this reason.
    ProviderAnswer(String),
    /// The provider does not accept the client id or the client secret.
    ClientRefused(String),
    /// The provider does not accept the code: it was used before, or has expired.
    CodeRefused,
    WrongIssuer,
    WrongAudience,
    WrongNonce,
    BadSignature,
    /// The key set of the provider lacks the key that signed the token.
    UnknownKey,
    Expired,
    /// The token was issued in the future.
    ClockSkew {
        seconds: u64,
    },
    /// Anything else that is wrong with the token.
    InvalidToken(String),
    /// The person has no role in this console.
    NoRole {
        name: String,
        subject: String,
    },
    /// The sign-in could not be recorded in the audit log.
    StoreDown,
    /// The system gave no random numbers.
    Internal,
}

impl Refusal {
    /// The reason as one word for the log.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::StateMismatch => "state_mismatch",
            Self::TooSlow => "too_slow",
            Self::Denied(_) => "denied_by_provider",
            Self::ProviderDown(_) => "provider_down",
            Self::ProviderAnswer(_) => "provider_answer",
            Self::ClientRefused(_) => "client_refused",
            Self::CodeRefused => "code_refused",
            Self::WrongIssuer => "wrong_issuer",
            Self::WrongAudience => "wrong_audience",
            Self::WrongNonce => "wrong_nonce",
            Self::BadSignature => "bad_signature",
            Self::UnknownKey => "unknown_key",
            Self::Expired => "expired",
            Self::ClockSkew { .. } => "clock_skew",
            Self::InvalidToken(_) => "invalid_token",
            Self::NoRole { .. } => "no_role",
            Self::StoreDown => "store_down",
            Self::Internal => "internal",
        }
    }

    /// Details for the log, besides the reason; empty if there are none.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Denied(what)
            | Self::ProviderDown(what)
            | Self::ProviderAnswer(what)
            | Self::ClientRefused(what)
            | Self::InvalidToken(what) => what.clone(),
            Self::ClockSkew { seconds } => format!("issued {seconds} s in the future"),
            Self::NoRole { name, subject } => format!("{name}, sub {subject}"),
            _ => String::new(),
        }
    }

    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::StateMismatch | Self::TooSlow => StatusCode::BAD_REQUEST,
            Self::ProviderDown(_) | Self::StoreDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::ProviderAnswer(_) | Self::ClientRefused(_) | Self::InvalidToken(_) => StatusCode::BAD_GATEWAY,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::FORBIDDEN,
        }
    }

    pub(super) const fn title(&self) -> &'static str {
        match self {
            Self::StateMismatch => "This sign-in did not begin here",
            Self::TooSlow => "The sign-in took too long",
            Self::Denied(_) => "The identity provider refused the sign-in",
            Self::ProviderDown(_) => "The identity provider does not respond",
            Self::ProviderAnswer(_) => "The answer of the identity provider cannot be used",
            Self::ClientRefused(_) => "The identity provider does not know this console",
            Self::CodeRefused => "This sign-in was already used",
            Self::WrongIssuer => "The sign-in came from another identity provider",
            Self::WrongAudience => "The sign-in was meant for another application",
            Self::WrongNonce => "The sign-in belongs to another request",
            Self::BadSignature | Self::UnknownKey => "The signature of the sign-in is not valid",
            Self::Expired => "The sign-in has expired",
            Self::ClockSkew { .. } => "The clocks do not agree",
            Self::InvalidToken(_) => "The sign-in cannot be read",
            Self::NoRole { .. } => "No role",
            Self::StoreDown => "Try again in a moment",
            Self::Internal => "Internal error",
        }
    }

    /// What happened and what to do, for the person who wanted to sign in.
    pub(super) fn text(&self) -> String {
        const ADMINISTRATOR: &str =
            "If this happens again, tell an administrator of the service; its log has the details.";
        let what = match self {
            Self::StateMismatch => {
                "Sign in again from this page. This error occurs if cookies are blocked, if the page was opened under \
                 another host name, or if a link from another site tried to sign you in."
            }
            Self::TooSlow => "A sign-in must be finished within ten minutes. Sign in again.",
            Self::Denied(_) => "You cancelled the sign-in, or you may not use this application. Sign in again.",
            Self::ProviderDown(_) => "Nobody can sign in until it responds. Try again in a moment.",
            Self::ProviderAnswer(_) => "The configurations of the provider and of the console may not agree.",
            Self::ClientRefused(_) => {
                "The provider refused the client id or secret of the console. An administrator must correct them."
            }
            Self::CodeRefused => "A sign-in works only once, for a short time. Sign in again.",
            Self::WrongIssuer => "The ID token was not issued by the provider that this console trusts.",
            Self::WrongAudience => "The ID token was issued to another application than this console.",
            Self::WrongNonce => "The ID token was issued for another sign-in than this one. Sign in again.",
            Self::BadSignature => "The ID token was not signed with a key of the identity provider.",
            Self::UnknownKey => {
                "The ID token was signed with a key that the identity provider does not publish. Try again in a moment."
            }
            Self::Expired => "The ID token was no longer valid when it arrived. Sign in again.",
            Self::ClockSkew { seconds } => {
                return format!(
                    "The clock of the identity provider is {seconds} s ahead of this server's. An administrator must \
                     correct one of them."
                );
            }
            Self::InvalidToken(_) => "The identity provider sent an ID token that is incomplete or malformed.",
            Self::NoRole { name, .. } => {
                return format!(
                    "You are signed in as {name} at the identity provider, but have no role in this console. Ask an \
                     administrator of the service for one, then sign in again."
                );
            }
            Self::StoreDown => "The store is not responding or is overloaded, so the sign-in could not be recorded.",
            Self::Internal => "The log of the service has the details.",
        };
        if self.retrying_helps() { what.to_owned() } else { format!("{what} {ADMINISTRATOR}") }
    }

    /// Whether another sign-in may succeed without a change by an administrator.
    const fn retrying_helps(&self) -> bool {
        matches!(
            self,
            Self::StateMismatch
                | Self::TooSlow
                | Self::Denied(_)
                | Self::ProviderDown(_)
                | Self::CodeRefused
                | Self::StoreDown
        )
    }
}
