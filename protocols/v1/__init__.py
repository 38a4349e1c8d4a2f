"""Generated from the protos of package nearfar.v1; do not edit."""
