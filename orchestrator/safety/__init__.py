"""Information flow: labels and detectors decide what may leave (`privacy`), taint decides what may act (`guard`)."""
