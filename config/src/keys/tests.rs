use proptest::prelude::*;

use super::*;
use crate::testing::TestRng;

#[test]
fn no_secret_shows_in_debug() {
    let mut rng = TestRng::new(1);
    let node = NodeKey::generate(&mut rng);
    let (record, authority) = (RecordKey::generate(&mut rng), AuthoritySecret::generate(&mut rng));
    let (delegation, secret) = (DelegationKey::generate(&mut rng), MeshSecret::generate(&mut rng));
    let shown = format!("{node:?} {record:?} {authority:?} {delegation:?} {secret:?}");
    assert_eq!(
        shown,
        "NodeKey(redacted) RecordKey(redacted) AuthoritySecret(redacted) DelegationKey(redacted) \
         MeshSecret(redacted)"
    );
}

/// Dropping these types only erases their contents; plain bytes would need no drop. For
/// `SigningKey` the library guarantees it, and nothing else can be checked.
#[test]
fn every_key_and_secret_is_erased_when_dropped() {
    fn erases_itself<T: Zeroize>(_: &T) -> bool {
        std::mem::needs_drop::<T>()
    }
    fn promises_to<T: ZeroizeOnDrop>(_: &T) {}
    assert!(!erases_itself(&[1_u8; 32]));
    let mut rng = TestRng::new(6);
    let NodeKey(node) = &NodeKey::generate(&mut rng);
    assert!(erases_itself(node));
    let RecordKey(record) = &RecordKey::generate(&mut rng);
    let AuthoritySecret(authority) = &AuthoritySecret::generate(&mut rng);
    let DelegationKey(delegation) = &DelegationKey::generate(&mut rng);
    for key in [record, authority, delegation] {
        promises_to(key);
        assert!(std::mem::needs_drop::<SigningKey>());
    }
    let mut secret = MeshSecret::generate(&mut rng);
    promises_to(&secret);
    assert!(erases_itself(&secret));
    assert!(erases_itself(&secret.psk(&NodeId::from_bytes([1; 32]), &NodeId::from_bytes([2; 32]))));
    assert!(erases_itself(&random_bytes(&mut rng)) && erases_itself(&secret.to_text()));
    secret.zeroize();
    assert_eq!(secret.0, [0; 32]);
}

#[test]
fn key_texts_round_trip() {
    let mut rng = TestRng::new(2);
    let node = NodeKey::generate(&mut rng);
    assert_eq!(node.to_text().parse::<NodeKey>().unwrap().public(), node.public());
    assert_eq!(node.to_text().len(), 44);
    let record = RecordKey::generate(&mut rng);
    assert_eq!(record.to_text().parse::<RecordKey>().unwrap().public(), record.public());
    let authority = AuthoritySecret::generate(&mut rng);
    let again: AuthoritySecret = format!(" {}\n", *authority.to_text()).parse().unwrap();
    assert_eq!(again.public(), authority.public());
    let secret = MeshSecret::generate(&mut rng);
    assert_eq!(secret.to_text().parse::<MeshSecret>().unwrap().0, secret.0);
}

#[test]
fn a_key_of_one_kind_is_not_taken_for_another() {
    let mut rng = TestRng::new(3);
    let record = RecordKey::generate(&mut rng).to_text();
    let error = record.parse::<AuthoritySecret>().unwrap_err();
    assert_eq!(error, Error::WrongKind { expected: "an authority key", found: "a record key" });
    assert!(record.parse::<NodeKey>().is_err());
    let later = record.replace("-1.", "-2.");
    assert_eq!(
        later.parse::<RecordKey>().unwrap_err(),
        Error::OtherVersion { what: "a record key" }
    );
}

#[test]
fn wrong_secret_texts_are_refused_without_repeating_them() {
    let text = RecordKey::generate(&mut TestRng::new(4)).to_text();
    for length in 0..text.len() {
        let cut = &text[..length];
        let error = cut.parse::<RecordKey>().unwrap_err().to_string();
        assert!(length < 30 || !error.contains(&cut[22..]), "{error}");
    }
    assert!(format!("{}A", *text).parse::<RecordKey>().is_err());
    let error = "c2VjcmV0".parse::<NodeKey>().unwrap_err().to_string();
    assert!(!error.contains("c2VjcmV0"), "{error}");
}

#[test]
fn signatures_speak_for_one_key_and_one_message() {
    let mut rng = TestRng::new(5);
    let (key, other) = (RecordKey::generate(&mut rng), RecordKey::generate(&mut rng));
    let signature = key.sign(b"message");
    assert_eq!(key.public().verify(b"message", &signature), Ok(()));
    assert_eq!(key.public().verify(b"messagf", &signature), Err(Error::BadSignature));
    assert_eq!(other.public().verify(b"message", &signature), Err(Error::BadSignature));
    for byte in 0..64 {
        let mut bytes = *signature.as_bytes();
        bytes[byte] ^= 0x40;
        let changed = Signature::from_bytes(bytes);
        assert_eq!(key.public().verify(b"message", &changed), Err(Error::BadSignature));
    }
}

#[test]
fn keys_of_small_order_verify_nothing() {
    // The identity point: a signature of zeros would verify any message under it.
    let mut identity = [0; 32];
    identity[0] = 1;
    let mut signature = [0; 64];
    signature[0] = 1;
    let key = VerifyKey::from_bytes(identity);
    assert!(key.verify(b"anything", &Signature::from_bytes(signature)).is_err());
}

#[test]
fn psk_is_the_same_from_both_sides_and_differs_per_pair_and_mesh() {
    let secret = MeshSecret::from_bytes([9; 32]);
    let node = |n: u8| NodeId::from_bytes([n; 32]);
    let psk = secret.psk(&node(1), &node(2));
    assert_eq!(*psk, *secret.psk(&node(2), &node(1)));
    assert_ne!(*psk, *secret.psk(&node(1), &node(3)));
    assert_ne!(*psk, *MeshSecret::from_bytes([8; 32]).psk(&node(1), &node(2)));
    // Every version has to compute the same key, or nodes cannot speak to each other.
    assert_eq!(
        data_encoding::HEXLOWER.encode(&*psk),
        "49aca1a1dd003e87e32db402bffd55f413567126a97e591bf9ce99138a3afa81"
    );
}

proptest! {
    #[test]
    fn signatures_round_trip(first: [u8; 32], second: [u8; 32]) {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&first);
        bytes[32..].copy_from_slice(&second);
        let signature = Signature::from_bytes(bytes);
        let encoded = postcard::to_stdvec(&signature).unwrap();
        prop_assert_eq!(encoded.len(), 64);
        prop_assert_eq!(postcard::from_bytes::<Signature>(&encoded).unwrap(), signature);
        let value = toml::Value::try_from(signature).unwrap();
        prop_assert_eq!(value.try_into::<Signature>().unwrap(), signature);
    }
}
