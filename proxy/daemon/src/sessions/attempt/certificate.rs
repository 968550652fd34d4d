//! Reads the certificate of a candidate's instance over the path that a session would take.

use meshport_mesh::Stream;

use super::link::{Link, Way};
use super::{Failure, Target};
use crate::health::handshake::Handshake;

/// Reads it. The caller bounds the time.
pub(crate) async fn certificate(target: &Target) -> Result<Vec<u8>, String> {
    let text = |failure: Failure| failure.to_string();
    let mut link = Link::open(target).await.map_err(text)?;
    let mut handshake = Handshake::new()?;
    loop {
        send(&mut link, &mut handshake).await.map_err(text)?;
        let Some(chunks) = link.recv().await.map_err(text)? else { continue };
        if chunks.iter().all(bytes::Bytes::is_empty) {
            return Err("it closed the connection without a certificate".into());
        }
        for chunk in chunks {
            handshake.take(&chunk)?;
        }
        if let Some(certificate) = handshake.certificate() {
            // The certificate is here, whatever becomes of the goodbye.
            let _ = send(&mut link, &mut handshake).await;
            if let Way::Mesh(Stream { mut send, .. }) = link.take_way() {
                let _ = send.finish();
            }
            return Ok(certificate);
        }
    }
}

async fn send(link: &mut Link, handshake: &mut Handshake) -> Result<(), Failure> {
    let bytes = handshake.outgoing();
    if !bytes.is_empty() {
        link.forward(bytes.into()).await?;
    }
    Ok(())
}
