"""The learned head: what a prompt says about which agent will get it right, before any token is generated."""
