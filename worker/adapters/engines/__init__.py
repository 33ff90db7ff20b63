"""What differs between foreign engines, one file each; `base` says what each must tell."""
