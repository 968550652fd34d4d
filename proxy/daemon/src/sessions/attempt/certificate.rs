//! Reads the certificate of a candidate's instance over the path that a session would take.

use meshport_mesh::Stream;

use super::link::{Connection, Link};
use super::{Failure, Target};
use crate::health::handshake::{CertificateError, Handshake};

/// Reads it. The caller bounds the time.
pub(crate) async fn certificate(target: &Target) -> Result<Vec<u8>, CertificateError> {
    let mut link = Link::open(target).await?;
    let mut handshake = Handshake::new()?;
    loop {
        send(&mut link, &mut handshake).await?;
        let Some(chunks) = link.recv().await? else { continue };
        if chunks.iter().all(bytes::Bytes::is_empty) {
            return Err(CertificateError::Closed);
        }
        for chunk in chunks {
            handshake.take(&chunk)?;
        }
        if let Some(certificate) = handshake.certificate() {
            // The certificate has arrived, so an error while closing does not matter.
            let _ = send(&mut link, &mut handshake).await;
            if let Connection::Mesh(Stream { mut send, .. }) = link.take_connection() {
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
