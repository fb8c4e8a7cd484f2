//! The certificates of the test server: an authority of its own, and one for localhost that it signed. Both are valid for a
//! hundred years, and trusted by the tests alone. They were made so:
//!
//! ```sh
//! openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout authority.key -out authority.pem \
//!     -days 36500 -subj "/CN=Tests of enmasse"
//! openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj "/CN=localhost"
//! printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n' >extensions
//! openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -out server.pem -days 36500 \
//!     -extfile extensions
//! ```

pub const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBjTCCATOgAwIBAgIUFsrK0AR0oYSiRy9ljfzE5FvfuEMwCgYIKoZIzj0EAwIw
GzEZMBcGA1UEAwwQVGVzdHMgb2YgZW5tYXNzZTAgFw0yNjExMjMwNjMwMjBaGA8y
MTI2MTAzMDA2MzAyMFowGzEZMBcGA1UEAwwQVGVzdHMgb2YgZW5tYXNzZTBZMBMG
ByqGSM49AgEGCCqGSM49AwEHA0IABEaBbkYk401n77bmGNYOjZIAoIdcIgto0Glw
4WPG6UDQ4JMj3q1s1hHVozGkzn3mrwFGB/0TMlQYadj9wtkCzE2jUzBRMB0GA1Ud
DgQWBBR6hyDCX5mgyUrA4ppZN/J1tuMdjzAfBgNVHSMEGDAWgBR6hyDCX5mgyUrA
4ppZN/J1tuMdjzAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIG+h
m8UF99PTzb5r+vEvPKWuN9MZWbQqHJCobFv4mZtDAiEAxfNXxFs4ROFj4xm2Q2mW
Et4EBZD8gxoC16/wTg30Apc=
-----END CERTIFICATE-----
";

pub const SERVER: &str = "\
-----BEGIN CERTIFICATE-----
MIIBnTCCAUKgAwIBAgIUGZ7OG4HC38CvjH+99nsAvWqnl3AwCgYIKoZIzj0EAwIw
GzEZMBcGA1UEAwwQVGVzdHMgb2YgZW5tYXNzZTAgFw0yNjExMjMwNjMwMjFaGA8y
MTI2MTAzMDA2MzAyMVowFDESMBAGA1UEAwwJbG9jYWxob3N0MFkwEwYHKoZIzj0C
AQYIKoZIzj0DAQcDQgAEdWUbrusLPCYLQgbvfDZf96MI14jDu66sDPDUP2MvuKmL
/KvTNTksMZIER0Xu0C7dX7wOqYbbRDJzwMgwm8TwYaNpMGcwGgYDVR0RBBMwEYIJ
bG9jYWxob3N0hwR/AAABMAkGA1UdEwQCMAAwHQYDVR0OBBYEFBYbq5oF2AECzFND
nEuW6J6g6+jXMB8GA1UdIwQYMBaAFHqHIMJfmaDJSsDimlk38nW24x2PMAoGCCqG
SM49BAMCA0kAMEYCIQCZ5YPB/wzh+zngcLK7eSLLwfJ0WUgbb3A3wOzyCfOgcAIh
AIgxpRL2TJ/W9UCvxz588qDT+dU1bSS4qpEsXEDQamgs
-----END CERTIFICATE-----
";

pub const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQggC1l5yaOtwL5IziO
wi6cdQBDn/xXqBvD6h5TcX2lqqChRANCAAR1ZRuu6ws8JgtCBu98Nl/3owjXiMO7
rqwM8NQ/Yy+4qYv8q9M1OSwxkgRHRe7QLt1fvA6phttEMnPAyDCbxPBh
-----END PRIVATE KEY-----
";
