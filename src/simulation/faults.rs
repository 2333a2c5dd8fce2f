//! The kinds of faults that a run can inject, and of what clients and operators do besides submitting intents.

/// A kind of fault, or of what clients and operators do. Each seed draws which kinds it uses and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// An instance dies and is started again later.
    Crash,
    /// An instance dies while it makes a call of the store or of a gateway.
    CrashInCall,
    /// An instance does nothing for a while, often for longer than its lease lasts.
    Freeze,
    /// An instance stops in order, as after SIGTERM, and is started again later.
    Stop,
    /// An actor or an attempt panics.
    Panic,
    /// A call of the store takes long, before it takes effect or afterwards.
    SlowStore,
    /// A call of the store fails without effect.
    FailBefore,
    /// A call of the store takes effect, and its caller gets an error.
    LostAnswer,
    /// A commit fails at its end and is rolled back.
    FailCommit,
    /// One item of a batch cannot be written.
    BadItem,
    /// A renewal of the lease fails, or is not answered.
    LostRenewal,
    /// Gateways reject, fail, hang, answer late or send invalid answers.
    Gateways,
    /// The instance's machine lacks a resource for a call, such as a file descriptor.
    Shortage,
    /// Webhook receivers fail, hang or answer late.
    Receivers,
    /// The clock of the store's machine is set forward or back.
    ClockJump,
    /// An instance reads a registry with other contracts.
    Reload,
    /// An operator pauses a target and resumes it.
    Pause,
    /// Retention deletes intents soon after they have ended.
    Retention,
    /// Several clients submit the same id at the same time, or use it for another message.
    Clients,
    /// Clients submit intents in batches.
    Batches,
    /// Clients submit intents with a scheduled start.
    NotBefore,
    /// Clients cancel intents.
    Cancels,
    /// Operators redrive failed intents, in bulk and one by one.
    Redrives,
    /// Tenants submit jobs.
    Jobs,
    /// Others send submissions to the inbox.
    Inbox,
    /// Readers follow the event feed.
    Readers,
}

impl Fault {
    pub(super) const ALL: [Self; 26] = [
        Self::Crash,
        Self::CrashInCall,
        Self::Freeze,
        Self::Stop,
        Self::Panic,
        Self::SlowStore,
        Self::FailBefore,
        Self::LostAnswer,
        Self::FailCommit,
        Self::BadItem,
        Self::LostRenewal,
        Self::Gateways,
        Self::Shortage,
        Self::Receivers,
        Self::ClockJump,
        Self::Reload,
        Self::Pause,
        Self::Retention,
        Self::Clients,
        Self::Batches,
        Self::NotBefore,
        Self::Cancels,
        Self::Redrives,
        Self::Jobs,
        Self::Inbox,
        Self::Readers,
    ];

    /// The name in reports and in `SM_SIMULATION_WITHOUT`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::CrashInCall => "crash-in-call",
            Self::Freeze => "freeze",
            Self::Stop => "stop",
            Self::Panic => "panic",
            Self::SlowStore => "slow-store",
            Self::FailBefore => "fail-before",
            Self::LostAnswer => "lost-answer",
            Self::FailCommit => "fail-commit",
            Self::BadItem => "bad-item",
            Self::LostRenewal => "lost-renewal",
            Self::Gateways => "gateways",
            Self::Shortage => "shortage",
            Self::Receivers => "receivers",
            Self::ClockJump => "clock-jump",
            Self::Reload => "reload",
            Self::Pause => "pause",
            Self::Retention => "retention",
            Self::Clients => "clients",
            Self::Batches => "batches",
            Self::NotBefore => "not-before",
            Self::Cancels => "cancels",
            Self::Redrives => "redrives",
            Self::Jobs => "jobs",
            Self::Inbox => "inbox",
            Self::Readers => "readers",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// In which share of all seeds this kind happens.
    pub(super) fn share_of_seeds(self) -> f64 {
        match self {
            Self::Batches | Self::NotBefore | Self::Cancels | Self::Redrives => 0.4,
            Self::Jobs | Self::Inbox | Self::Readers => 0.3,
            _ => 0.55,
        }
    }

    /// Whether the fault can interrupt an attempt, so that its outcome is not recorded.
    pub(super) fn interrupts_attempts(self) -> bool {
        matches!(
            self,
            Self::Crash
                | Self::CrashInCall
                | Self::Freeze
                | Self::Panic
                | Self::SlowStore
                | Self::FailBefore
                | Self::LostAnswer
                | Self::FailCommit
                | Self::BadItem
                | Self::LostRenewal
                | Self::ClockJump
        )
    }
}
