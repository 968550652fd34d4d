//! The crate's error type, grouped by who can act on it.
//!
//! Settings report [`crate::Problem`]s instead, because a file has many of them at once. Nothing
//! here carries a secret: text that may hold one is never repeated.

use crate::ids::{MeshId, NodeId, NodeName, Role, SiteName, UnixSeconds};
use crate::revoked::Revoked;
use crate::text::TextError;

/// A problem with a name, a key, a credential or an invite.
///
/// Every message names the problem and what to do next. Errors change nothing: all operations of
/// this crate return a complete value or none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // Caused by the writer of the text or the bytes.
    /// Malformed text, or a list of the wrong length.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A text that should contain a key or secret does not; the message does not repeat it.
    #[error("this is not {what}: expected {expected}")]
    SecretText {
        /// The expected thing, with its article.
        what: &'static str,
        /// The form that is accepted.
        expected: &'static str,
    },
    /// The text is of another kind than expected, for example a credential instead of an invite.
    #[error("this is {found}, not {expected}; give {expected}")]
    WrongKind {
        /// The expected kind, with its article.
        expected: &'static str,
        /// The given kind, with its article.
        found: &'static str,
    },
    /// A text was made by a version of meshport that this one does not understand.
    #[error(
        "this is {what} in another version of the format; use the same version of meshport on \
         both sides"
    )]
    OtherVersion {
        /// The kind of text, with its article.
        what: &'static str,
    },
    /// An encoding is longer than its limit.
    #[error(
        "{what} takes {bytes} bytes, more than the {max} allowed; use shorter names or \
         fewer entries"
    )]
    TooLarge {
        /// The kind of value, with its article.
        what: &'static str,
        /// Its size, in bytes.
        bytes: usize,
        /// The bound, in bytes.
        max: usize,
    },
    /// Bytes cannot be decoded.
    #[error(
        "{what} cannot be decoded: it is truncated, damaged or from another version; get it again"
    )]
    Malformed {
        /// The expected thing, with its article.
        what: &'static str,
    },
    /// An invite line does not match its own checksum: copied wrongly, not forged.
    #[error(
        "the invite is incomplete or mistyped: its checksum does not match. Copy the whole line \
         again"
    )]
    InviteMiscopied,
    /// An invite of another version, whose content this one cannot trust or read.
    #[error(
        "the invite was made by another version of meshport. Make a new one with `meshport \
         invite` of the version installed here"
    )]
    InviteOutdated,
    /// A mandate to renew credentials has expired, or has no turn for this time.
    #[error(
        "the mandate expired at {until}, and this machine's clock says {now}; make a new one with \
         `meshport delegate` where the authority's key is"
    )]
    MandateEnded {
        /// Its end.
        until: UnixSeconds,
        /// The time here.
        now: UnixSeconds,
    },
    /// A mandate is for another node.
    #[error(
        "the mandate is for node {found}, but this is node {expected}; install it there, or make \
         one for this node with `meshport delegate`"
    )]
    ForeignMandate {
        /// This node.
        expected: NodeId,
        /// The node it is for.
        found: NodeId,
    },
    /// The invite leaves the name open and none was given.
    #[error("the invite does not fix this node's name; give one")]
    NameNeeded,
    /// The invite leaves the site open and none was given.
    #[error("the invite does not fix this node's site; give one")]
    SiteNeeded,

    // Caused by the issuer or the presenter of the credential.
    /// It belongs to another mesh.
    #[error(
        "it belongs to another mesh, {found}; this one is {expected}. Get one from this mesh's \
         operator"
    )]
    ForeignMesh {
        /// The mesh this node is in.
        expected: MeshId,
        /// The mesh that was named.
        found: MeshId,
    },
    /// A signature does not match: something was changed after signing, or signed by another key.
    #[error("{what} was tampered with: its signature does not match. Ask for a new invite")]
    Tampered {
        /// The signed statement, with its article.
        what: &'static str,
    },
    /// The issuer has signed the credential, but not its node, like all credentials of earlier
    /// releases.
    #[error(
        "the node has not signed its credential, which is from an earlier version of meshport. \
         Issue it again there: `meshport renew`, or `meshport join INVITE --force`"
    )]
    NotCountersigned,
    /// A key other than the node's has signed its credential.
    #[error(
        "the credential is not signed by the node it names, {node}: that node never agreed to it, \
         or it was changed. `meshport renew` there makes a new one"
    )]
    WrongCountersignature {
        /// The node it is about.
        node: NodeId,
    },
    /// An authority key cannot endorse another one, since its own chain has the maximum length.
    #[error(
        "this authority key cannot endorse another one: {max} endorsements, the maximum, lie \
         between it and the mesh's first key. Use a key nearer to the first one"
    )]
    ChainTooLong {
        /// The most endorsements.
        max: usize,
    },
    /// A signature over other data does not match.
    #[error("the signature does not match the data and the key")]
    BadSignature,
    /// An invite was created in the future, beyond the allowed clock skew: this clock is behind, or
    /// the issuer's was ahead.
    #[error(
        "this machine's clock is behind: it says {now}, but the invite was created at \
         {valid_from}. Set the clock (`timedatectl` shows it) and try again"
    )]
    InviteNotYetValid {
        /// Creation of the invite.
        valid_from: UnixSeconds,
        /// The time of this machine's clock.
        now: UnixSeconds,
    },
    /// A credential or mandate begins in the future, beyond the allowed clock skew.
    #[error(
        "it is not valid before {valid_from}, but this machine's clock says {now}. Correct the \
         clock, or wait"
    )]
    NotYetValid {
        /// Start of its validity.
        valid_from: UnixSeconds,
        /// The time of this machine's clock.
        now: UnixSeconds,
    },
    /// A new mesh secret was signed in the future, beyond the allowed clock skew.
    #[error(
        "the new mesh secret was signed at {at}, but this machine's clock says {now}. Correct the \
         wrong clock, and sign it again with `meshport rotate-secret`"
    )]
    RotationAhead {
        /// Time of signing.
        at: UnixSeconds,
        /// The time of this machine's clock.
        now: UnixSeconds,
    },
    /// The previous mesh secret would end at once.
    #[error(
        "the new mesh secret ends the previous one at {retire_at}, and this machine's clock says \
         {now}: members without the new one would be shut out. If a clock is wrong, correct it; \
         then sign it again with `meshport rotate-secret`"
    )]
    RotationOver {
        /// End of the previous secret.
        retire_at: UnixSeconds,
        /// The time of this machine's clock.
        now: UnixSeconds,
    },
    /// The credential has expired.
    #[error(
        "the credential expired at {expired_at}, and this machine's clock says {now}. Join again \
         with a new invite, or correct the clock"
    )]
    Expired {
        /// End of its validity.
        expired_at: UnixSeconds,
        /// The time of this machine's clock.
        now: UnixSeconds,
    },
    /// The authority has revoked it.
    #[error(
        "{revoked} was revoked at {at}. This machine is accepted again only with new keys: \
         `meshport reset`, then join with a new invite; an operator needs only `meshport forward \
         --invite FILE`"
    )]
    Revoked {
        /// The revoked node or invite.
        revoked: Revoked,
        /// Time of the revocation.
        at: UnixSeconds,
    },
    /// The invite is no longer valid.
    #[error(
        "the invite expired at {join_until}, and this machine's clock says {now}. Ask for a new \
         invite, or correct the clock"
    )]
    InviteExpired {
        /// End of joining.
        join_until: UnixSeconds,
        /// The time of this machine's clock.
        now: UnixSeconds,
    },
    /// The credential was issued after its invite had expired.
    #[error(
        "the credential was issued at {issued_at}, after its invite expired at {join_until}. Join \
         again with a new invite"
    )]
    IssuedAfterInvite {
        /// Time of issue.
        issued_at: UnixSeconds,
        /// End of joining.
        join_until: UnixSeconds,
    },
    /// The credential was issued before its invite could be used.
    #[error(
        "the credential was issued at {issued_at}, before its invite became valid at \
         {not_before}. Check the clock of the machine that joined, and join again"
    )]
    IssuedBeforeInvite {
        /// Time of issue.
        issued_at: UnixSeconds,
        /// Start of joining.
        not_before: UnixSeconds,
    },
    /// Its period of validity is empty.
    #[error("it ends at {until}, not after its start at {from}. Issue it again")]
    ValidityEmpty {
        /// Start.
        from: UnixSeconds,
        /// End.
        until: UnixSeconds,
    },
    /// The credential is valid for longer than its invite allows.
    #[error(
        "the credential is valid for {lifetime_s} s, longer than the {allowed_s} s its invite \
         allows. Join again with a new invite"
    )]
    LifetimeTooLong {
        /// How long it is valid, in seconds.
        lifetime_s: u64,
        /// How long it may be valid, in seconds.
        allowed_s: u64,
    },
    /// The credential has a role that its invite does not give.
    #[error(
        "its invite does not allow the role {role}, only {allowed}. Ask for an invite with that \
         role"
    )]
    RoleOutside {
        /// The role.
        role: Role,
        /// The roles in the invite.
        allowed: String,
    },
    /// The credential lacks a role of its invite that removes a right.
    #[error("its invite gives the role {role}, which a node must not drop. Add it to --role")]
    RoleDropped {
        /// The role.
        role: Role,
    },
    /// The credential names another site than its invite.
    #[error(
        "the site {site} does not match its invite, which is for {allowed}. Ask for an invite for \
         that site"
    )]
    SiteOutside {
        /// The site.
        site: SiteName,
        /// The site of the invite.
        allowed: SiteName,
    },
    /// The credential names another node than its invite.
    #[error(
        "the name {name} does not match its invite, which is for {allowed}. Ask for an invite for \
         that name"
    )]
    NameOutside {
        /// The name.
        name: NodeName,
        /// The name in the invite.
        allowed: NodeName,
    },
    /// The private key does not belong to the delegation it should sign under.
    #[error("the invite's key does not belong to its delegation. Ask for a new invite")]
    WrongDelegationKey,
    /// The credential was made for another WireGuard key.
    #[error(
        "the credential was made for the node key {found}, but this one is {expected}. Restore \
         the key it was made for, or join again"
    )]
    WrongNodeKey {
        /// The key of the node that presents it.
        expected: NodeId,
        /// The key the credential names.
        found: NodeId,
    },
    /// The credential names another key for signing records.
    #[error(
        "the credential was made for a different record key. Restore the key it was made for, or \
         join again"
    )]
    WrongRecordKey,
}
