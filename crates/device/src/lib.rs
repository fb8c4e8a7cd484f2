//! What a device is: it takes whole plans and gives back a program.
